"""The dense Laplacian, built from its five diagonals."""

import pytest
import torch
from calibration_checks import random_maps

from scm_fast import InputError, reference
from scm_fast.ops import laplacian as laplacian_module
from scm_fast.ops.edge_similarity import edge_similarity
from scm_fast.ops.laplacian import laplacian, laplacian_op

BACKENDS = ("torch", "triton")


def edges_and_lam(device: str, grid: tuple[int, int], batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    edges = edge_similarity(random_maps(batch, 5, grid)[0], "torch").to(device)
    return edges.requires_grad_(), torch.tensor(1.3, dtype=torch.float64, device=device, requires_grad=True)


@pytest.mark.parametrize("grid", [(14, 14), (7, 13), (1, 5), (5, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_reference(poisoned_memory, device, backend, grid):
    S = random_maps(2, 5, grid)[0].requires_grad_()
    expected_lam = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    expected = reference.laplacian(reference.similarity(S.flatten(2)), expected_lam, grid)
    edges, lam = edges_and_lam(device, grid)
    L = laplacian(edges, lam, backend)
    torch.testing.assert_close(L.cpu(), expected)

    weight = torch.randn_like(expected)
    (expected * weight).sum().backward()
    (L * weight.to(L.device)).sum().backward()
    torch.testing.assert_close(lam.grad.cpu(), expected_lam.grad)
    S_again = S.detach().requires_grad_()
    edge_similarity(S_again, "torch").backward(edges.grad.cpu())
    torch.testing.assert_close(S_again.grad, S.grad)


@pytest.mark.parametrize("grid", [(14, 14), (1, 5), (5, 1), (1, 1)], ids=str)
def test_no_size_depends_on_values(grid):
    """A GPU would be waited for. On the meta device there are no values at all."""
    edges = torch.empty(2, 2, *grid, device="meta")
    lam = torch.ones((), device="meta")
    L = laplacian_module.forward(edges, lam)
    dedges, dlam = laplacian_module.backward(L, edges, lam)
    assert (dedges.shape, dlam.shape) == (edges.shape, lam.shape)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_a_transposed_view(device, backend):
    edges, lam = edges_and_lam(device, (3, 4))
    weight = torch.randn(2, 12, 12, dtype=torch.float64, device=edges.device)
    direct = torch.autograd.grad(laplacian(edges, lam, backend), (edges, lam), weight.mT)
    copied = torch.autograd.grad(laplacian(edges, lam, backend), (edges, lam), weight.mT.contiguous())
    torch.testing.assert_close(direct, copied)


@pytest.mark.not_compiled
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck_and_opcheck(device, backend):
    edges, lam = edges_and_lam(device, (2, 3), batch=1)
    assert torch.autograd.gradcheck(lambda e, lam: laplacian(e, lam, backend), (edges, lam))
    torch.library.opcheck(laplacian_op, (edges, lam, backend))


def test_bad_input():
    with pytest.raises(InputError, match=r"edges must have shape \(B, 2, H, W\), got \(1, 3, 4, 4\)"):
        laplacian(torch.zeros(1, 3, 4, 4), torch.ones(()))
    with pytest.raises(InputError, match=r"edges must be float32 or float64, got torch.float16"):
        laplacian(torch.zeros(1, 2, 4, 4).half(), torch.ones(()))
    with pytest.raises(InputError, match=r"lam must be a single number, got shape \(2,\)"):
        laplacian(torch.zeros(1, 2, 4, 4), torch.ones(2))
