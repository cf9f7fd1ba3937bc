"""What SCM adds to a training step: DeiT-Small, 224 px, B = 16, fp32, against TS-CAM and a literal SCM.

    pytest bench/bench_training_step.py --benchmark-only

Steps of the methods alternate, and the ratio of their medians counts, so that a machine that is busy for a
while slows all of them. A step is forward, cross-entropy and backward; the optimiser is the same for all.
Peak memory is that of the tensors which the step itself allocates, gradients included, by the profiler.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from measure import alternate, ratios
from torch import nn

from scm_fast import create_model
from scm_fast.models import cls_attention

BACKBONE, CLASSES, BATCH, SIZE = "deit_small_patch16_224", 200, 16, 224
ROUNDS = 9
MAX_TIME_RATIO, MAX_MEMORY_RATIO = 1.08, 1.05


def _literal_attend(self, q, k, v, mask=None):
    """Attention that forms and keeps its matrix, whose first row is the CLS row."""
    matrix = (q @ k.mT * self.scale).softmax(-1)
    cls_attention._thread.rows.append(matrix.mean(1)[:, 0])
    return (matrix @ v).transpose(1, 2).flatten(2)


def literal_scm() -> nn.Module:
    """SCM as its equations read: stored attention matrices, and dense matrices in the calibration."""
    model = create_model(BACKBONE, CLASSES, "scm", backend="reference")
    unfused = type("LiteralAttention", (cls_attention.VitAttention,), {"attend": _literal_attend})
    for block in model.backbone.blocks:
        block.attn.__class__ = unfused
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, 3, SIZE, SIZE, generator=generator)
    return images, torch.randint(CLASSES, (BATCH,), generator=generator)


def step(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    F.cross_entropy(model(images), labels).backward()


def compare(benchmark, models: dict[str, nn.Module], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds and peak bytes of each model's step, from alternating rounds."""
    images, labels = batch()

    def step_of(model: nn.Module) -> Callable[[], None]:
        model.train()

        def run() -> None:
            model.zero_grad(set_to_none=True)
            step(model, images, labels)

        return run

    return alternate(benchmark, {name: step_of(model) for name, model in models.items()}, rounds)


@pytest.mark.slow
def test_scm_costs_little_more_than_tscam(benchmark):
    models = {method: create_model(BACKBONE, CLASSES, method) for method in ("tscam", "scm")}
    found = ratios(compare(benchmark, models, ROUNDS), "scm", "tscam")
    assert found["seconds"] <= MAX_TIME_RATIO
    assert found["peak_bytes"] <= MAX_MEMORY_RATIO


@pytest.mark.slow
def test_scm_against_a_literal_implementation(benchmark):
    models = {"scm": create_model(BACKBONE, CLASSES, "scm"), "literal": literal_scm()}
    models["literal"].load_state_dict(models["scm"].state_dict())
    images, _ = batch()
    torch.testing.assert_close(  # what is timed must be right
        models["literal"].train()(images[:2]), models["scm"].train()(images[:2]), rtol=1e-3, atol=1e-4
    )
    found = ratios(compare(benchmark, models, 3), "literal", "scm")
    assert found["seconds"] > 1
    assert found["peak_bytes"] > 1
