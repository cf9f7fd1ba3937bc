"""Cosines on the edges of the token grid."""

import pytest
import torch
from calibration_checks import random_maps

from scm_fast import InputError, reference
from scm_fast.backends import implementation
from scm_fast.ops.edge_similarity import edge_similarity, edge_similarity_op

BACKENDS = ("torch", "triton")
FORWARD = {"torch": set(), "triton": {"edge_similarity_forward"}}
BOTH = {"torch": set(), "triton": {"edge_similarity_forward", "edge_similarity_backward"}}


def semantic(device: str, grid: tuple[int, int], classes: int = 7, batch: int = 2) -> torch.Tensor:
    return random_maps(batch, classes, grid)[0].to(device)


@pytest.mark.parametrize(
    "grid",
    [
        (14, 14),
        (1, 5),
        (5, 1),
        *(pytest.param(grid, marks=pytest.mark.not_compiled) for grid in ((7, 13), (1, 1))),
    ],
    ids=str,
)
@pytest.mark.parametrize("classes", [1, pytest.param(7, marks=pytest.mark.not_compiled), 70])
@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_reference(poisoned_memory, device, launched, backend, classes, grid):
    S = semantic(device, grid, classes).requires_grad_()
    edges = edge_similarity(S, backend)
    expected_S = S.detach().cpu().requires_grad_()
    expected = reference.edge_similarity(expected_S)
    torch.testing.assert_close(edges.cpu(), expected, rtol=1e-10, atol=1e-10)
    weight = torch.randn_like(expected)
    (edges * weight.to(S.device)).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(S.grad.cpu(), expected_S.grad, rtol=1e-9, atol=1e-9)
    assert launched() == BOTH[backend]


@pytest.mark.parametrize("backend", BACKENDS)
def test_pooling_gradient_is_written_in_the_same_pass(poisoned_memory, device, launched, backend):
    S = semantic(device, (3, 4))
    kernels = implementation("edge_similarity", backend)
    edges, inverse_norm = kernels.forward(S)
    weight, dpooled = torch.rand_like(S[:, 0]), torch.randn_like(S[:, :, 0, 0])
    alone = kernels.backward(edges, S, edges, inverse_norm)
    both = kernels.backward(edges, S, edges, inverse_norm, weight, dpooled)
    S_ref = S.detach().requires_grad_()
    reference.pooling(S_ref, weight).backward(dpooled)
    torch.testing.assert_close(both - alone, S_ref.grad)
    assert launched() == BOTH[backend]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_error_in_low_precision(poisoned_memory, device, launched, backend, dtype):
    """The error is at most twice plain torch's on the same rounded S, and float32's in any case."""
    S = semantic(device, (5, 6), 40).to(dtype)
    exact = reference.edge_similarity(S.cpu().double())
    plain = reference.edge_similarity(S.cpu().float())
    edges = edge_similarity(S, backend).cpu()
    assert launched() == FORWARD[backend]
    assert edges.dtype == torch.float32
    assert (edges - exact).abs().max() <= 2 * (plain - exact).abs().max() + 1e-7


@pytest.mark.parametrize("backend", BACKENDS)
def test_vectors_whose_square_is_subnormal(poisoned_memory, device, launched, backend):
    """Their square is not 0, though an approximate root on a GPU is: nothing may become infinite."""
    S = semantic(device, (3, 4)).float()
    S[:, :, 1, 1] *= 1e-20
    tiny = S[:, :, 1, 1].square().sum(1)
    assert ((tiny > 0) & (tiny < 2**-126)).all()
    S.requires_grad_()
    edges = edge_similarity(S, backend)
    expected = reference.edge_similarity(S.detach().cpu().double())
    torch.testing.assert_close(edges.cpu().double(), expected, rtol=1e-4, atol=1e-4)
    edges.sum().backward()
    assert S.grad.isfinite().all()
    assert launched() == BOTH[backend]


@pytest.mark.not_compiled
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck_and_opcheck(device, launched, backend):
    S = semantic(device, (2, 3), 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda S: edge_similarity(S, backend), (S,))
    assert launched() == BOTH[backend]
    torch.library.opcheck(edge_similarity_op, (S, backend))
    channels_last = S.detach().to(memory_format=torch.channels_last).requires_grad_()
    torch.library.opcheck(edge_similarity_op, (channels_last, backend))


def test_bad_input():
    with pytest.raises(InputError, match=r"S must be a non-empty floating-point \(B, C, H, W\)"):
        edge_similarity(torch.zeros(2, 3, 4))
    with pytest.raises(InputError, match=r"edge_similarity runs on the torch or triton backend"):
        edge_similarity(torch.zeros(1, 2, 3, 4), "reference")
