"""The stack of blocks on scalar fields, and which way each block is computed."""

import pytest
import torch
from calibration_checks import random_maps

from scm_fast import InputError, reference
from scm_fast.ops.activation_diffusion import (
    Segment,
    Settings,
    activation_diffusion,
    activation_diffusion_op,
    choose_solver,
    in_one_launch,
    plan,
)
from scm_fast.ops.diffusion_fields import tanhshrink
from scm_fast.ops.edge_similarity import edge_similarity

BACKENDS = ("torch", "triton")
FUSED = {"activation_diffusion_forward", "activation_diffusion_backward"}
DENSE = {"laplacian_forward", "laplacian_backward", "product", "complement_vector"}


def inputs(device: str, grid: tuple[int, int] = (2, 3), batch: int = 1) -> tuple[torch.Tensor, ...]:
    S, F = random_maps(batch, 5, grid)
    edges = edge_similarity(S, "torch")
    lam, beta = torch.tensor([0.9, 1.2]).double(), torch.tensor([0.4, 0.6]).double()
    return tuple(x.to(device).requires_grad_() for x in (F, edges, lam, beta))


def outputs_and_gradients(function, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    attention, gain = function(*tensors)
    (attention.square().sum() + gain.pow(3).sum()).backward()
    return [x.detach().cpu() for x in (attention, gain, *(x.grad for x in tensors))]


@pytest.mark.parametrize("detach_init", [False, True], ids=["true-gradient", "detached"])
@pytest.mark.parametrize(
    ("grid", "iterations", "solver"),
    [
        ((7, 13), [3, 2], "stencil"),
        ((5, 1), [3, 0], "stencil"),
        ((5, 4), [3, 2], "dense"),
        # For so few tokens p = 7 takes dense matrices.
        pytest.param((1, 5), [7, 2], "auto", marks=pytest.mark.not_compiled),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_reference(poisoned_memory, device, launched, backend, grid, iterations, solver, detach_init):
    settings = Settings(iterations, 0.002, detach_init, solver, backend)
    found = outputs_and_gradients(
        lambda *x: activation_diffusion(*x, settings), inputs(device, grid, batch=2)
    )
    expected = outputs_and_gradients(
        lambda *x: reference.activation_diffusion(*x, *settings[:3]), inputs("cpu", grid, batch=2)
    )
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)
    kernels = {"stencil": FUSED, "dense": DENSE, "auto": FUSED | DENSE}[solver]
    assert launched() == (kernels if backend == "triton" else set())


CASES = {
    "stencil": Settings([1, 2], 0.05, solver="stencil"),
    "dense": Settings([1, 2], 0.05, solver="dense"),
    "both": Settings([7, 2], 0.002),
}


@pytest.mark.not_compiled
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_gradcheck_and_opcheck(device, backend, case):
    settings = CASES[case]._replace(backend=backend)
    tensors = inputs(device)
    assert torch.autograd.gradcheck(lambda *x: activation_diffusion(*x, settings), tensors, atol=1e-5)
    torch.library.opcheck(activation_diffusion_op, (*tensors, *settings))


def test_cost_model():
    assert choose_solver(4, 1) == choose_solver(6, 196) == choose_solver(4, 64 * 64) == "stencil"
    assert choose_solver(16, 14 * 14) == choose_solver(16, 28 * 28) == choose_solver(16, 64 * 64) == "dense"


def test_plan():
    def segments(iterations, tokens=196, dtype=torch.float32, **settings):
        return plan(Settings(iterations, 0.002, **settings), tokens, dtype)

    triton = {"backend": "triton"}
    four, dense_first = [False] * 4, [True, False, False, False]
    assert segments([4] * 4, **triton) == [Segment(slice(0, 4), True, four)]
    assert in_one_launch(segments([4] * 4, **triton))
    assert segments([4] * 4, backend="torch") == [Segment(slice(0, 4), False, four)]
    assert segments([16, 4, 4, 4], backend="torch") == [Segment(slice(0, 4), False, dense_first)]
    assert segments([16, 4, 4, 4], **triton) == [
        Segment(slice(0, 1), False, [True]),
        Segment(slice(1, 4), True, [False] * 3),
    ]
    assert segments([4, 4], solver="dense", **triton) == [Segment(slice(0, 2), False, [True, True])]
    # What one kernel takes: 15 blocks, 4096 tokens, and in float64 1024.
    assert [s.blocks for s in segments([1] * 17, **triton)] == [slice(0, 15), slice(15, 17)]
    assert not in_one_launch(segments([1] * 17, **triton))
    assert in_one_launch(segments([4], 64 * 64, **triton))
    assert not in_one_launch(segments([4], 64 * 64 + 1, **triton))
    assert not in_one_launch(segments([4], 33 * 32, torch.float64, **triton))


def test_bad_input():
    F, edges, lam, beta = (x.detach() for x in inputs("cpu"))
    settings = Settings([1, 2], 0.002)
    for given, message in (
        ((F, edges[:, :1], lam, beta, settings), r"edges must have shape \(B, 2, H, W\), got \(1, 1, 2, 3\)"),
        ((F, edges.half(), lam, beta, settings), "edges must be float32 or float64, got torch.float16"),
        ((F.mT, edges, lam, beta, settings), r"F must be a floating-point \(1, 2, 3\), got .* \(1, 3, 2\)"),
        ((F, edges, lam[:1], beta, settings), r"lam and beta must have shape \(2,\), got \(1,\) and \(2,\)"),
        ((F, edges, lam, beta, settings._replace(solver="sparse")), "solver must be one of stencil, dense"),
        (
            (F, edges, lam, beta, settings._replace(backend="reference")),
            "activation_diffusion runs on the torch",
        ),
    ):
        with pytest.raises(InputError, match=message):
            activation_diffusion(*given)


def test_tanhshrink_keeps_relative_precision():
    z = torch.logspace(-8, 2, 200, dtype=torch.float64)
    z = torch.cat((-z, z))
    # In float64 the literal difference is exact to 1e-16 / z^2: good enough to judge float32 from 1e-3 on.
    exact = torch.where(z.abs() < 1e-3, z**3 / 3 - 2 * z**5 / 15, z - torch.tanh(z))
    shrunk, slope = tanhshrink(z.float())
    assert ((shrunk - exact).abs() <= 1e-6 * exact.abs()).all()
    torch.testing.assert_close(slope.double(), torch.tanh(z) ** 2, rtol=1e-6, atol=0)
    assert ((tanhshrink(z)[0] - exact).abs() <= 1e-9 * exact.abs()).all()
