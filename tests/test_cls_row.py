"""The CLS row as an op of its own, beside attention: its row and both gradients on every backend.

`test_cls_attention.py` has the networks around it.
"""

import pytest
import torch

from scm_fast import reference
from scm_fast.ops.cls_row import (
    MAX_TOKENS,
    cls_row,
    cls_row_backward_op,
    cls_row_op,
    row_backend,
    row_beside_attention,
)

BACKENDS = ("torch", "triton")
KERNELS = {"torch": set(), "triton": {"cls_row_forward", "cls_row_backward"}}
NAMES = ("q", "k", "row", "dq", "dk")
# heads, tokens, elements of a head
SHAPES = [(3, 11, 8), (1, 1, 4), (2, 37, 20)]


def projected(batch, heads, tokens, d, contiguous=False, dtype=torch.float64):
    """q and k as slices of one projection, as attention has them."""
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(batch, tokens, 3, heads, d, dtype=torch.float64, generator=generator).to(dtype)
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return (q.contiguous(), k.contiguous()) if contiguous else (q, k)


def results(compute, q, k):
    """q, k, row, and the gradients of a random combination of the three, in float64 on the CPU."""
    q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
    outputs = compute(q, k)
    generator = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=torch.float64, device=q.device)
    for output in outputs:
        weight = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(q.device)
        loss = loss + (output.double() * weight).sum()
    loss.backward()
    return dict(zip(NAMES, (x.detach().double().cpu() for x in (*outputs, q.grad, k.grad)), strict=True))


def expected(q, k, scale):
    return results(lambda q, k: (q * 1, k * 1, reference.cls_row(q, k, scale)), q, k)


@pytest.mark.parametrize("contiguous", [False, True], ids=["sliced", "contiguous"])
@pytest.mark.parametrize(("heads", "tokens", "d"), SHAPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_reference(poisoned_memory, device, launched, backend, heads, tokens, d, contiguous):
    q, k = projected(2, heads, tokens, d, contiguous)
    found = results(lambda *x: row_beside_attention(*x, 0.7, backend), q.to(device), k.to(device))
    for name, value in expected(q, k, 0.7).items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=name)
    assert launched() == KERNELS[backend]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_error_in_low_precision(poisoned_memory, device, launched, backend, dtype):
    """The error is at most twice that of plain attention in that dtype, against float64."""
    q, k = projected(2, 3, 50, 16, dtype=dtype)
    exact, plain = expected(q.double(), k.double(), 0.25), expected(q, k, 0.25)
    found = results(lambda *x: row_beside_attention(*x, 0.25, backend), q.to(device), k.to(device))
    # The interpreter truncates where it stores bfloat16, which a GPU rounds.
    kept = torch.finfo(dtype).eps * (1 if dtype == torch.bfloat16 else 0.5)
    for name, value in exact.items():
        error, theirs = ((x[name] - value).norm() / value.norm() for x in (found, plain))
        assert error <= 2 * theirs + kept, name
    assert launched() == KERNELS[backend]


@pytest.mark.parametrize("backend", BACKENDS)
def test_large_scores_do_not_overflow(device, backend):
    q, k = (20 * x for x in projected(1, 2, 40, 32, dtype=torch.float32))
    row = cls_row(q.to(device), k.to(device), 1.0, backend).cpu()
    torch.testing.assert_close(row.sum(-1), torch.ones(1))
    torch.testing.assert_close(
        row, reference.cls_row(q.double(), k.double(), 1.0).float(), rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_lie_in_other_ways(device, backend):
    """Attention may hand back gradients that are expanded, transposed or slices."""
    q, k = (x.to(device) for x in projected(2, 2, 5, 4))
    _, rows = cls_row_op(q, k, 0.5, "torch")
    drow = torch.rand(1, 5, dtype=q.dtype, device=device).expand(2, 5)
    plain = torch.rand(2, 2, 5, 4, dtype=q.dtype, device=device)
    want = cls_row_backward_op(plain, plain, drow, q, k, rows, 0.5, "torch")
    transposed = plain.transpose(2, 3).contiguous().transpose(2, 3)
    sliced = torch.cat([plain, plain], 1)[:, :2]
    for dq, dk in [(transposed, sliced), (sliced, transposed)]:
        found = cls_row_backward_op(dq, dk, drow, q, k, rows, 0.5, backend)
        for ours, theirs in zip(found, want, strict=True):
            torch.testing.assert_close(ours, theirs)
    ones = torch.ones((), dtype=q.dtype, device=device).expand(2, 2, 5, 4)
    want = cls_row_backward_op(ones.clone(), ones.clone(), drow, q, k, rows, 0.5, "torch")
    torch.testing.assert_close(cls_row_backward_op(ones, ones, drow, q, k, rows, 0.5, backend), want)


@pytest.mark.not_compiled
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck_and_opcheck(device, launched, backend):
    q, k = (x.to(device).requires_grad_() for x in projected(1, 2, 3, 2))
    assert torch.autograd.gradcheck(lambda *x: row_beside_attention(*x, 0.7, backend), (q, k))
    assert launched() == KERNELS[backend]
    q, k = q.detach(), k.detach()
    torch.library.opcheck(cls_row_op, (q, k, 0.7, backend))
    row, rows = cls_row_op(q, k, 0.7, backend)
    gradients = (torch.rand_like(q), torch.rand_like(k), torch.rand_like(row))
    torch.library.opcheck(cls_row_backward_op, (*gradients, q, k, rows, 0.7, backend))


def test_more_tokens_than_a_program_holds_are_for_torch(monkeypatch):
    monkeypatch.setattr("scm_fast.ops.cls_row.resolve_backend", lambda *_: "triton")
    q = torch.empty(1, 1, MAX_TOKENS, 1)
    assert row_backend(q) == "triton"
    assert row_backend(torch.cat([q, q], 2)) == "torch"
