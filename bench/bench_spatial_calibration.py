"""The whole module against its literal reference.

    pytest bench/bench_spatial_calibration.py --benchmark-only

Four blocks of p = 4 in float32, unless a case says otherwise. The speed-ups and the growth that the project
promises are asserted here.
"""

from collections.abc import Callable

import pytest
import torch
from implementations import Implementation, across_backends, fastest_backend, proven, shapes, tasks
from measure import Task

from scm_fast import SpatialCalibration
from scm_fast.benchmarks.table import Case
from scm_fast.ops.activation_diffusion import choose_solver

FIRST = (128, 200, 14)
SHAPES = shapes(
    ("forward", *FIRST),
    ("backward", *FIRST),
    ("both", *FIRST),
    *(("both", *shape) for shape in [(16, 1000, 14), (8, 200, 14), (8, 200, 28), (8, 200, 56)]),
    full=[
        *((mode, 8, 200, side) for mode in ("forward", "backward") for side in (14, 28, 56)),
        *((mode, 8, 200, side) for mode in ("forward", "backward", "both") for side in (20, 40, 64)),
        *((mode, 8, 1000, side) for mode in ("forward", "backward", "both") for side in (14, 28, 56, 64)),
        *(("both", *shape) for shape in [(1, 200, 14), (256, 200, 14), (128, 1000, 14), (32, 200, 28)]),
    ],
)
# What the module must reach against the reference, forward and backward. On a GPU it is a floor below what the
# roofline promises of any (bench/roofline.py), and has not been measured yet.
LEAST_SPEEDUP = {
    "cpu": {(128, 200, 14): 20, (8, 200, 28): 100},
    "cuda": {(128, 200, 14): 5, (8, 200, 28): 5},
}
LEAST_MEMORY_RATIO = 20
MOST_GROWTH = 25  # in time, for 16 times as many tokens

# A round of the reference may take so many operations: a minute on a slow CPU, seconds on a GPU.
MOST_OPERATIONS = {"cpu": 1e13, "cuda": 1e15}


def maps(batch: int, classes: int, side: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    S = torch.randn(batch, classes, side, side, generator=generator)
    F = torch.rand(batch, side, side, generator=generator)
    return S.to(device).requires_grad_(), F.to(device).requires_grad_()


def maker(S: torch.Tensor, F: torch.Tensor, **settings: object) -> Callable[[str], Implementation]:
    def make(backend: str) -> Implementation:
        scm = SpatialCalibration(backend=backend, **settings).to(S.device)
        return Implementation(lambda: scm(S, F).logits, (S, F, scm.lam, scm.beta))

    return make


def gradient_of_logits(S: torch.Tensor) -> torch.Tensor:
    return torch.randn(S.shape[:2], generator=torch.Generator().manual_seed(1)).to(S.device)


def reference_not_run(batch: int, tokens: int, device: torch.device) -> str:
    """Say why the reference is left out: its 16 iterations take two products of 2 N^3, and thrice that with the
    backward pass."""
    operations = 3 * 16 * 2 * 2 * batch * tokens**3
    most = MOST_OPERATIONS[device.type]
    return "" if operations <= most else f"a step of the reference takes {operations / 1e12:.0f} TFLOP"


@pytest.mark.parametrize(("mode", "batch", "classes", "side"), SHAPES)
def test_spatial_calibration(compare, device, full, limits, mode, batch, classes, side):
    not_run = reference_not_run(batch, side**2, device)
    if not_run:
        prove_on_one_image(classes, side, device)
    S, F = maps(batch, classes, side, device)
    dlogits = gradient_of_logits(S)
    compiling = full or (mode, batch, classes, side) == ("both", *FIRST)
    found = across_backends(maker(S, F), device, compiling=compiling, reference_not_run=not_run)
    found = proven(found, dlogits, compared=3)  # that by beta nearly cancels in float32
    case = Case("spatial_calibration", mode, batch, classes, side, side, "float32")
    measured = compare(case, tasks(found, mode, dlogits))
    least = LEAST_SPEEDUP[device.type].get((batch, classes, side))
    if limits and mode == "both" and least is not None:
        ours, working = fastest_backend(device), measured.working_bytes
        assert measured.ratio("reference", ours) >= least
        assert working["reference"] >= LEAST_MEMORY_RATIO * working[ours]


def prove_on_one_image(classes: int, side: int, device: torch.device) -> None:
    """The proof for grids whose reference is too slow to run as it is timed: one image, block and iteration."""
    S, F = maps(1, classes, side, device)
    make = maker(S, F, num_blocks=1, iterations=1)
    proven(across_backends(make, device, compiling=False), gradient_of_logits(S), compared=3)


@pytest.mark.parametrize("batch", [8, 64])  # mostly overhead, and mostly work
def test_growth_with_the_number_of_tokens(compare, device, limits, batch):
    """All sizes take turns, so that their ratio is as sure as that of two backends."""
    backend = fastest_backend(device)
    both: dict[str, Task] = {}
    for side in (56, 14):
        S, F = maps(batch, 200, side, device)
        implementation = maker(S, F)(backend)
        dlogits = gradient_of_logits(S)
        proven({backend: implementation}, dlogits)
        both[f"{backend}, {side} x {side}"] = implementation.task("both", dlogits)
    case = Case("spatial_calibration", "both", batch, 200, dtype="float32", variant="growth with the tokens")
    large, small = both
    measured = compare(case, both, base=large, memory=False)
    assert not limits or measured.ratio(large, small) <= MOST_GROWTH


@pytest.mark.full
@pytest.mark.parametrize("iterations", [4, 8, 10, 16])
def test_stencil_against_matrices(compare, device, iterations):
    """Measure what the cost model of `choose_solver` is fitted to, at 14 x 14 tokens."""
    S, F = maps(16, 200, 14, device)
    dlogits = gradient_of_logits(S)
    solvers = ("stencil", "dense") if iterations <= 10 else ("dense",)
    found = {"reference": maker(S, F, num_blocks=1, iterations=iterations)("reference")}
    for solver in solvers:
        found[f"torch, {solver}"] = maker(S, F, num_blocks=1, iterations=iterations, solver=solver)("torch")
    found = proven(found, dlogits, compared=1)
    variant = f"1 block of p = {iterations}, auto takes {choose_solver(iterations, 196)}"
    case = Case("spatial_calibration", "both", 16, 200, 14, 14, "float32", variant)
    compare(case, tasks(found, "both", dlogits))
