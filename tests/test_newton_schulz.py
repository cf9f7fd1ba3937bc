"""The Newton-Schulz chain: X_p, and X_p F at half the products."""

import pytest
import torch
from calibration_checks import random_maps

from scm_fast import InputError, reference
from scm_fast.ops.newton_schulz import (
    newton_schulz,
    newton_schulz_apply,
    newton_schulz_apply_op,
    newton_schulz_op,
    times,
)

BACKENDS = ("torch", "triton")
ALPHA = 0.02


def matrices(device: str, N: int, batch: int = 2, symmetric: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    L = torch.randn(batch, N, N, generator=generator, dtype=torch.float64)
    L = L + L.mT if symmetric else L
    L = L / torch.linalg.matrix_norm(L, 2)[:, None, None] * 5
    return L.to(device).requires_grad_()


def reference_apply(L, F, iterations, detach_init):
    return (reference.newton_schulz(L, iterations, ALPHA, detach_init) @ F.unsqueeze(-1)).squeeze(-1)


def gradients(output: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.device)
    found = torch.autograd.grad((output * weight).sum(), inputs, allow_unused=True)
    return [(torch.zeros_like(x) if g is None else g).cpu() for x, g in zip(inputs, found, strict=True)]


@pytest.mark.parametrize("detach_init", [False, True], ids=["true-gradient", "detached"])
@pytest.mark.parametrize("iterations", [pytest.param(0, marks=pytest.mark.not_compiled), 1, 4])
@pytest.mark.parametrize("N", [1, pytest.param(5, marks=pytest.mark.not_compiled), 33])
@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_reference(poisoned_memory, device, backend, N, iterations, detach_init):
    """L need not be symmetric."""
    L = matrices(device, N)
    F = torch.rand(2, N, dtype=torch.float64).to(L.device).requires_grad_()
    expected_L, expected_F = (x.detach().cpu().requires_grad_() for x in (L, F))
    settings = {"detach_init": detach_init, "backend": backend}
    tolerance = {"rtol": 1e-8, "atol": 1e-10}

    expected = reference.newton_schulz(expected_L, iterations, ALPHA, detach_init)
    X = newton_schulz(L, iterations, ALPHA, **settings)
    torch.testing.assert_close(X.cpu(), expected, **tolerance)
    if expected.requires_grad:
        torch.testing.assert_close(gradients(X, (L,)), gradients(expected, (expected_L,)), **tolerance)

    expected = reference_apply(expected_L, expected_F, iterations, detach_init)
    out = newton_schulz_apply(L, F, iterations, ALPHA, **settings)
    torch.testing.assert_close(out.cpu(), expected, **tolerance)
    torch.testing.assert_close(
        gradients(out, (L, F)), gradients(expected, (expected_L, expected_F)), **tolerance
    )


@pytest.mark.parametrize(("backend", "grid", "iterations"), [("torch", (14, 14), 16), ("triton", (10, 7), 2)])
@pytest.mark.parametrize("detach_init", [False, True], ids=["true-gradient", "detached"])
def test_laplacian_of_several_tiles(device, backend, grid, iterations, detach_init):
    """196 and 70 tokens are multiples of no tile."""
    S, F = random_maps(1, 20, grid)
    L = reference.laplacian(reference.similarity(S.flatten(2)), torch.tensor(1.1), grid)
    inputs = [x.to(device).requires_grad_() for x in (L, F.flatten(1))]
    expected_inputs = [x.detach().cpu().requires_grad_() for x in inputs]
    out = newton_schulz_apply(*inputs, iterations, 0.002, detach_init, backend=backend)
    X = reference.newton_schulz(expected_inputs[0], iterations, 0.002, detach_init)
    expected = (X @ expected_inputs[1].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        gradients(out, tuple(inputs)), gradients(expected, tuple(expected_inputs)), rtol=1e-7, atol=1e-7
    )


def test_complement_form_is_more_accurate_than_squaring_the_residual():
    S, F = random_maps(2, 20, (14, 14))
    L = reference.laplacian(reference.similarity(S.flatten(2)), torch.tensor(1.0), (14, 14))
    F = F.flatten(1)
    exact = newton_schulz_apply(L, F, 16, 0.002, backend="torch")

    R = torch.eye(196) - 0.002 * L.float() @ L.float()
    w = F.float()
    for _ in range(16):
        w, R = w + times(R, w), R @ R
    squared = 0.002 * times(L.float(), w)
    complement = newton_schulz_apply(L.float(), F.float(), 16, 0.002, backend="torch")
    assert 10 * (complement - exact).norm() < (squared - exact).norm()


@pytest.mark.parametrize("backend", BACKENDS)
def test_float32_error(poisoned_memory, device, backend):
    L = matrices(device, 40, symmetric=True).detach()
    F = torch.rand(2, 40, dtype=torch.float64, device=L.device)
    exact = reference_apply(L.cpu(), F.cpu(), 4, False)
    plain = reference_apply(L.cpu().float(), F.cpu().float(), 4, False)
    out = newton_schulz_apply(L.float(), F.float(), 4, ALPHA, backend=backend).cpu()
    assert (out - exact).norm() <= 2 * (plain - exact).norm()


@pytest.mark.not_compiled
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck_and_opcheck(device, backend):
    L = matrices(device, 4, batch=1)
    F = torch.rand(1, 4, dtype=torch.float64, device=L.device, requires_grad=True)
    assert torch.autograd.gradcheck(lambda L: newton_schulz(L, 2, ALPHA, backend=backend), (L,))
    assert torch.autograd.gradcheck(lambda *x: newton_schulz_apply(*x, 2, ALPHA, backend=backend), (L, F))
    torch.library.opcheck(newton_schulz_op, (L, 2, ALPHA, False, backend))
    torch.library.opcheck(newton_schulz_apply_op, (L, F, 2, ALPHA, False, backend))


def test_bad_input():
    L, F = torch.zeros(2, 4, 4), torch.zeros(2, 4)
    with pytest.raises(InputError, match=r"L must have shape \(B, N, N\), got \(2, 4, 5\)"):
        newton_schulz(torch.zeros(2, 4, 5), 1, ALPHA)
    with pytest.raises(InputError, match="iterations must not be negative, got -1"):
        newton_schulz(L, -1, ALPHA)
    with pytest.raises(InputError, match="alpha must be positive, got 0"):
        newton_schulz_apply(L, F, 1, 0.0)
    with pytest.raises(InputError, match=r"F must be torch.float32 of shape \(2, 4\) on cpu"):
        newton_schulz_apply(L, F[:1], 1, ALPHA)
