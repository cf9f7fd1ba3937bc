"""A training step: SCM on every backend, against SCM as its equations read, and all methods against TS-CAM.

    pytest bench/bench_training_step.py --benchmark-only          DeiT-Tiny, B = 8
    pytest bench/bench_training_step.py --benchmark-only --full   DeiT-Small, B = 16 as well, with its limits

A step is forward, loss and backward at 224 pixels in float32; the optimiser is the same for all. Peak
memory is that of the tensors which the step itself allocates, gradients included.
"""

import pytest
import torch
import torch.nn.functional as F
from implementations import Implementation, across_backends, fastest_backend, proven, shapes, tasks
from torch import nn

from scm_fast import create_model
from scm_fast.benchmarks.table import Case
from scm_fast.models import cls_attention
from scm_fast.models.methods import get_method

CLASSES, SIZE, GRID = 200, 224, 14
TINY, SMALL = "deit_tiny_patch16_224", "deit_small_patch16_224"
TSCAM = "TS-CAM"
# Of SCM against TS-CAM, with DeiT-Small.
MAX_TIME_RATIO, MAX_MEMORY_RATIO = 1.08, 1.05
# Of other methods against TS-CAM, with DeiT-Small.
MAX_METHOD_RATIOS = {"sat": 1.05, "lctr": 1.35}


def _literal_attend(self, q, k, v, mask=None):
    """Attention that forms and keeps its matrix, whose first row is the CLS row."""
    matrix = (q @ k.mT * self.scale).softmax(-1)
    cls_attention._thread.rows.append(matrix.mean(1)[:, 0])
    return (matrix @ v).transpose(1, 2).flatten(2)


def create_scm(backbone: str, backend: str) -> nn.Module:
    """Build the network; on the reference backend it stores its attention matrices as well."""
    torch.manual_seed(0)  # the same weights for all
    model = create_model(backbone, CLASSES, "scm", calibration={"backend": backend})
    if backend == "reference":
        unfused = type("LiteralAttention", (cls_attention.VitAttention,), {"attend": _literal_attend})
        for block in model.backbone.blocks:
            block.attn.__class__ = unfused
    return model


def step_of(model: nn.Module, device: torch.device, batch: int) -> Implementation:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, SIZE, SIZE, generator=generator).to(device)
    labels = torch.randint(CLASSES, (batch,), generator=generator).to(device)
    model.to(device).train()

    def loss():
        output = model(images)
        return sum(output.terms.values(), F.cross_entropy(output.logits, labels))

    return Implementation(loss, tuple(model.parameters()))


def case_of(backbone: str, batch: int, variant: str) -> Case:
    name = {TINY: "DeiT-Tiny", SMALL: "DeiT-Small"}[backbone]
    return Case("training_step", "both", batch, CLASSES, GRID, GRID, "float32", f"{name}, {SIZE} px{variant}")


@pytest.mark.parametrize(("backbone", "batch"), shapes((TINY, 8), full=[(SMALL, 16)]))
def test_training_step(compare, device, full, limits, backbone, batch):
    doutput = torch.ones((), device=device)
    found = across_backends(
        lambda backend: step_of(create_scm(backbone, backend), device, batch), device, compiling=full
    )
    # The last two gradients, by lam and beta, nearly cancel.
    found = proven(found, doutput, tolerance=1e-2, compared=-2)
    measured = compare(case_of(backbone, batch, ""), tasks(found, "both", doutput))
    if limits and backbone == SMALL:
        ours = fastest_backend(device)
        assert measured.ratio("reference", ours) > 1
        assert measured.peak_bytes["reference"] > measured.peak_bytes[ours]


@pytest.mark.parametrize(("backbone", "batch"), shapes((TINY, 8), full=[(SMALL, 16)]))
def test_scm_beside_tscam(compare, device, limits, backbone, batch):
    """Measure what the calibration adds to a step: the same network, trained without it."""
    ours, doutput = fastest_backend(device), torch.ones((), device=device)
    models = {TSCAM: create_model(backbone, CLASSES, "tscam"), ours: create_scm(backbone, ours)}
    steps = {name: step_of(model, device, batch) for name, model in models.items()}
    for step in steps.values():
        proven({"reference": step}, doutput)  # runs once; there is nothing to compare
    case = case_of(backbone, batch, ", beside TS-CAM")
    measured = compare(case, tasks(steps, "both", doutput), base=TSCAM, min_rounds=9)
    if limits and backbone == SMALL:
        assert measured.ratio(ours, TSCAM) <= MAX_TIME_RATIO
        assert measured.peak_bytes[ours] <= MAX_MEMORY_RATIO * measured.peak_bytes[TSCAM]


@pytest.mark.parametrize(("backbone", "batch"), shapes((TINY, 8), full=[(SMALL, 16)]))
def test_methods_beside_tscam(compare, device, limits, backbone, batch):
    """Measure what other methods add to a step. No two have the same loss, so there is nothing to compare."""
    doutput = torch.ones((), device=device)
    names = {TSCAM: "tscam"} | {get_method(name).title: name for name in MAX_METHOD_RATIOS}
    steps = {
        title: step_of(create_model(backbone, CLASSES, name), device, batch) for title, name in names.items()
    }
    for step in steps.values():
        proven({"reference": step}, doutput)  # runs once
    case = case_of(backbone, batch, ", methods beside TS-CAM")
    measured = compare(case, tasks(steps, "both", doutput), base=TSCAM, min_rounds=9)
    if limits and backbone == SMALL:
        for title, name in names.items():
            assert measured.ratio(title, TSCAM) <= MAX_METHOD_RATIOS.get(name, 1), title
