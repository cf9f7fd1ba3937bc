"""The loaded kernel against the paper's equations: values and gradients. `pytest tests` in the repository."""

from pathlib import Path

import pytest
import torch

from kernels import get_local_kernel


@pytest.fixture(scope="module")
def calibration():
    return get_local_kernel(Path(__file__).parents[1])


def run(calibration, backend, device, grid):
    torch.manual_seed(0)
    options = {"device": device, "dtype": torch.float64}  # in float32, small grids differ by its rounding
    module = calibration.SpatialCalibration(backend=backend).to(**options)
    S = torch.randn(2, 5, *grid, **options, requires_grad=True)
    F = torch.rand(2, *grid, **options, requires_grad=True)
    logits = module(S, F).logits
    (logits * torch.linspace(-1, 1, logits.numel(), **options).view_as(logits)).sum().backward()
    return logits, S.grad, F.grad, *(parameter.grad for parameter in module.parameters())


@pytest.mark.parametrize("grid", [(14, 14), (7, 13), (1, 5)], ids=str)
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_equals_the_reference(calibration, backend, grid):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if reason := calibration.available_backends()[backend]:
        pytest.skip(reason)
    for ours, literal in zip(
        run(calibration, backend, device, grid), run(calibration, "reference", device, grid), strict=True
    ):
        torch.testing.assert_close(ours, literal, rtol=1e-6, atol=1e-8)


def test_compiles(calibration):
    module = calibration.SpatialCalibration(backend="torch")
    S, F = torch.randn(2, 5, 7, 7), torch.rand(2, 7, 7)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(S, F).logits, module(S, F).logits)
