"""The calibration module, forward and backward, against its literal reference.

    pytest bench/bench_calibration.py --benchmark-only -s

Four blocks of p = 4 in float32 on the CPU. Calls alternate, and the ratio of the medians counts. Peak memory is
that of the tensors a step allocates, beyond the gradient of S, by the profiler.
"""

from collections.abc import Callable

import pytest
import torch
from measure import alternate, ratios

from scm_fast import SpatialCalibration
from scm_fast.ops.calibration import choose_method


def maps(batch: int, classes: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    S = torch.randn(batch, classes, side, side, generator=generator)
    return S.requires_grad_(), torch.rand(batch, side, side, generator=generator).requires_grad_()


def step(scm: SpatialCalibration, S: torch.Tensor, F: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A forward and backward pass, which returns dS."""
    dlogits = torch.randn(S.shape[:2], generator=torch.Generator().manual_seed(1))
    return lambda: torch.autograd.grad(scm(S, F).logits, (S, F, scm.lam, scm.beta), dlogits)[0]


def assert_equal_gradients(steps: dict[str, Callable[[], torch.Tensor]]) -> None:
    """What is timed must be right: the gradient of S is the end of every computation."""
    first, *others = (run() for run in steps.values())
    for other in others:
        assert (other - first).norm() < 1e-3 * first.norm()


@pytest.mark.parametrize(
    ("batch", "classes", "side", "rounds", "least"), [(128, 200, 14, 9, 20), (8, 200, 28, 5, 100)]
)
def test_speed_and_memory_against_the_reference(benchmark, batch, classes, side, rounds, least):
    S, F = maps(batch, classes, side)
    steps = {name: step(SpatialCalibration(backend=name), S, F) for name in ("reference", "torch")}
    assert_equal_gradients(steps)
    results = alternate(benchmark, steps, rounds)
    found = ratios(results, "reference", "torch")
    beyond = {name: result["peak_bytes"] - S.nbytes for name, result in results.items()}
    print(f"peak memory beyond dS: {beyond['reference'] / beyond['torch']:.0f} times less")
    assert found["seconds"] >= least
    assert beyond["reference"] >= 20 * beyond["torch"]


def test_growth_with_the_number_of_tokens(benchmark):
    steps = {}
    for side in (14, 28, 56):
        S, F = maps(8, 200, side)
        steps[f"{side}x{side}"] = step(SpatialCalibration(backend="torch"), S, F)
    found = ratios(alternate(benchmark, steps, 9), "56x56", "14x14")
    assert found["seconds"] <= 25


@pytest.mark.parametrize("iterations", [4, 8, 10, 16])
def test_stencil_against_matrices(benchmark, iterations):
    """What the cost model of `choose_method` is fitted to, at 14 x 14 tokens."""
    S, F = maps(16, 200, 14)
    methods = ("stencil", "dense") if iterations <= 10 else ("dense",)
    steps = {
        method: step(SpatialCalibration(1, iterations, method=method, backend="torch"), S, F)
        for method in methods
    }
    if len(methods) == 2:
        ratios(alternate(benchmark, steps, 5), "stencil", "dense")
    else:
        alternate(benchmark, steps, 5)
    print(f"p = {iterations}: auto takes {choose_method(iterations, 196)}")
