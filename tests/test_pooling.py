"""Weighted pooling of a map, and its two gradients."""

import pytest
import torch
from calibration_checks import random_maps

from scm_fast import InputError, reference
from scm_fast.ops.pooling import pooling, pooling_backward_op, pooling_op

BACKENDS = ("torch", "triton")
KERNELS = {"torch": set(), "triton": {"matrix_vector"}}


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels-last"])
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
def test_equals_reference(poisoned_memory, device, launched, backend, classes, grid, channels_last):
    S, weight = (x.to(device) for x in random_maps(2, classes, grid))
    S = S.to(memory_format=torch.channels_last) if channels_last else S
    S, weight = S.requires_grad_(), weight.requires_grad_()
    expected_inputs = [x.detach().cpu().requires_grad_() for x in (S, weight)]
    pooled, expected = pooling(S, weight, backend), reference.pooling(*expected_inputs)
    torch.testing.assert_close(pooled.cpu(), expected, rtol=1e-12, atol=1e-12)
    dpooled = torch.randn_like(expected)
    pooled.backward(dpooled.to(S.device))
    expected.backward(dpooled)
    for ours, theirs in zip((S, weight), expected_inputs, strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-12, atol=1e-12)
    assert launched() == KERNELS[backend]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_error_in_low_precision(poisoned_memory, device, launched, backend, dtype):
    """Only S is rounded: the sum is at most twice as wrong as that of plain torch in float32."""
    S, weight = random_maps(2, 40, (5, 6))
    S, weight = S.to(dtype), weight.float()
    exact = reference.pooling(S.double(), weight.double())
    plain = reference.pooling(S, weight)
    pooled = pooling(S.to(device), weight.to(device), backend).cpu()
    assert launched() == KERNELS[backend]
    assert pooled.dtype == torch.float32
    assert (pooled - exact).abs().max() <= 2 * (plain - exact).abs().max() + 1e-7


@pytest.mark.not_compiled
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck_and_opcheck(device, launched, backend):
    S, weight = (x.to(device).requires_grad_() for x in random_maps(1, 3, (2, 3)))
    assert torch.autograd.gradcheck(lambda *x: pooling(*x, backend), (S, weight))
    assert launched() == KERNELS[backend]
    strided = S.detach().to(memory_format=torch.channels_last).requires_grad_()
    for map_ in (S, strided):
        torch.library.opcheck(pooling_op, (map_, weight, backend))
        arguments = (torch.rand_like(S[:, :, 0, 0]), map_.detach(), weight.detach(), backend)
        torch.library.opcheck(pooling_backward_op, arguments)


def test_bad_input():
    with pytest.raises(InputError, match=r"S must be a non-empty floating-point \(B, C, H, W\)"):
        pooling(torch.zeros(2, 3, 4), torch.zeros(2, 4))
    with pytest.raises(
        InputError, match=r"weight must be torch.float32 of shape \(2, 4, 5\), got torch.float32"
    ):
        pooling(torch.zeros(2, 3, 4, 5), torch.zeros(2, 5, 4))
    with pytest.raises(InputError, match=r"weight must be torch.float32 .* got torch.float16"):
        pooling(torch.zeros(2, 3, 4, 5).half(), torch.zeros(2, 4, 5).half())
