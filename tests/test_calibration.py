"""The stack of blocks on scalar fields, and which method serves a block."""

import pytest
import torch
from calibration_checks import random_maps

from scm_fast.ops.calibration import calibration_op, choose_method, dense_blocks
from scm_fast.ops.edge_similarity import edge_similarity
from scm_fast.ops.fields import tanhshrink

BACKENDS = ("torch", "triton")


def inputs(device: str, grid: tuple[int, int] = (2, 3)) -> tuple[torch.Tensor, ...]:
    S, F = random_maps(1, 5, grid)
    edges = edge_similarity(S, "torch")
    lam, beta = torch.tensor([0.9, 1.2]).double(), torch.tensor([0.4, 0.6]).double()
    return tuple(x.to(device).requires_grad_() for x in (F, edges, lam, beta))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dense", [[False, False], [True, False]], ids=["stencil", "dense"])
def test_gradcheck_and_opcheck(device, backend, dense):
    arguments = ([1, 2], dense, 0.05, False, backend)
    tensors = inputs(device)
    assert torch.autograd.gradcheck(lambda *x: calibration_op(*x, *arguments)[:2], tensors, atol=1e-5)
    torch.library.opcheck(calibration_op, (*tensors, *arguments))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("detach_init", [False, True], ids=["true-gradient", "detached"])
def test_methods_agree(device, backend, detach_init):
    found = []
    for dense in ([False, False], [True, True], [True, False]):
        tensors = inputs(device, (5, 4))
        attention, gain, _ = calibration_op(*tensors, [3, 2], dense, 0.002, detach_init, backend)
        (attention.square().sum() + gain.pow(3).sum()).backward()
        found.append([attention.detach(), gain.detach(), *(x.grad for x in tensors)])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-7, atol=1e-8)


def test_cost_model():
    assert dense_blocks("auto", (16, 4, 4, 4), 14 * 14) == [True, False, False, False]
    assert dense_blocks("auto", (4,) * 4, 64 * 64) == [False] * 4
    assert choose_method(4, 1) == choose_method(6, 196) == "stencil"
    assert choose_method(16, 28 * 28) == "dense"
    assert choose_method(16, 64 * 64) == "dense"
    assert dense_blocks("dense", (4, 4), 196) == [True, True]


def test_tanhshrink_keeps_relative_precision():
    z = torch.logspace(-8, 2, 200, dtype=torch.float64)
    z = torch.cat((-z, z))
    # In float64 the literal difference is exact to 1e-16 / z^2: good enough to judge float32 from 1e-3 on.
    exact = torch.where(z.abs() < 1e-3, z**3 / 3 - 2 * z**5 / 15, z - torch.tanh(z))
    shrunk, slope = tanhshrink(z.float())
    assert ((shrunk - exact).abs() <= 1e-6 * exact.abs()).all()
    torch.testing.assert_close(slope.double(), torch.tanh(z) ** 2, rtol=1e-6, atol=0)
    assert ((tanhshrink(z)[0] - exact).abs() <= 1e-9 * exact.abs()).all()
