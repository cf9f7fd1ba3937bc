"""The CLS token's attention row, mean over the heads: q, k (B, heads, N, d) -> row (B, N).

    P_hn = softmax_n(scale <q_h0, k_hn>),   row_n = (1/heads) sum_h P_hn

Backward, with G = drow / heads:

    dS_hn = P_hn (G_n - sum_n P_hn G_n),   dk_hn += scale dS_hn q_h0,   dq_h0 += scale sum_n dS_hn k_hn

`row_beside_attention` is the row for attention that goes on with the q and k it is given: the attention's gradients
of q and k pass through, and the row's are added to them as they pass. Plain autograd would fill a whole gradient of
q with zeros for its first token, form the row's whole gradient of k, and add both in passes of their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..backends import custom_op, implementation, resolve_backend
from ..precision import single

MAX_TOKENS = 8192  # that a program of the kernels holds at once


def row_backend(q: Tensor) -> str:
    """`torch` or `triton` for the row of this q; the reference stands for plain operations of torch here."""
    name = resolve_backend("auto", q.device)
    return "triton" if name == "triton" and q.shape[2] <= MAX_TOKENS else "torch"


def cls_row(q: Tensor, k: Tensor, scale: float, backend: str | None = None) -> Tensor:
    """The row in float32, or float64 where q is, for q and k that need no gradient of it."""
    return _forward(q, k, scale, backend or row_backend(q))[0]


def row_beside_attention(
    q: Tensor, k: Tensor, scale: float, backend: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """q and k for attention to go on with, and the row."""
    return _RowBesideAttention.apply(q, k, scale, backend or row_backend(q))


class _RowBesideAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, scale: float, backend: str) -> tuple[Tensor, Tensor, Tensor]:
        row, rows = _forward(q, k, scale, backend)
        ctx.save_for_backward(q, k, rows)
        ctx.scale, ctx.backend = scale, backend
        return q.view_as(q), k.view_as(k), row

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dq: Tensor, dk: Tensor, drow: Tensor) -> tuple[Tensor, Tensor, None, None]:
        compute: Any = backward if ctx.backend == "torch" else _triton_backward
        return *compute(dq, dk, drow, *ctx.saved_tensors, ctx.scale), None, None


def _forward(q: Tensor, k: Tensor, scale: float, backend: str) -> tuple[Tensor, Tensor]:
    # On torch no op of this package: exported networks have plain operations, and compilers see through them.
    return forward(q, k, scale) if backend == "torch" else cls_row_op(q, k, scale, backend)


def _triton_backward(*arguments: Any) -> tuple[Tensor, Tensor]:
    return cls_row_backward_op(*arguments, "triton")


@custom_op("cls_row")
def cls_row_op(q: Tensor, k: Tensor, scale: float, backend: str) -> tuple[Tensor, Tensor]:
    """row (B, N), and for the backward pass the rows of the heads (B, heads, N)."""
    return implementation("cls_row", backend).forward(q, k, scale)


@custom_op("cls_row_backward")
def cls_row_backward_op(
    dq: Tensor, dk: Tensor, drow: Tensor, q: Tensor, k: Tensor, rows: Tensor, scale: float, backend: str
) -> tuple[Tensor, Tensor]:
    """dq and dk with the row's gradients added, in their dtypes."""
    return implementation("cls_row", backend).backward(dq, dk, drow, q, k, rows, scale)


@cls_row_op.register_fake
def _(q, k, scale, backend):
    dtype = torch.promote_types(q.dtype, torch.float32)
    row, rows = (k.shape[0], k.shape[2]), k.shape[:3]
    return tuple(q.new_empty(shape, dtype=dtype) for shape in (row, rows))


@cls_row_backward_op.register_fake
def _(dq, dk, *rest):
    B, heads, N, d = dk.shape
    if rest[-1] == "torch":
        return torch.empty_like(dq), torch.empty_like(dk)
    return tuple(x.new_empty(B, N, heads, d).transpose(1, 2) for x in (dq, dk))


def forward(q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """row (B, N) and the rows of the heads (B, heads, N)."""
    rows = rows_of_heads(q, k, scale)
    return rows.mean(1), rows


def rows_of_heads(q: Tensor, k: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """(B, heads, N); `mask` as in `scaled_dot_product_attention`."""
    query = q[:, :, 0] * scale  # [B, heads, d]; scaled first, so that float16 products stay in range
    if k.is_contiguous():
        scores = (query.unsqueeze(2) @ k.mT).squeeze(2)  # [B, heads, N]
    else:
        # Here k is a slice of a (B, N, 3, heads, d) projection, which a matmul batched over B and heads would
        # copy and keep for the backward pass. With the heads' queries as blocks of one (heads * d, heads)
        # matrix the keys are used where they lie.
        heads = torch.eye(q.shape[1], dtype=q.dtype, device=q.device)
        blocks = (query.unsqueeze(-1) * heads.unsqueeze(1)).flatten(1, 2)  # [B, heads * d, heads]
        scores = (k.transpose(1, 2).flatten(2) @ blocks).mT  # [B, heads, N]
    scores = single(scores)
    if mask is not None:
        row_mask = mask[..., 0, :]
        chooses = mask.dtype == torch.bool
        scores = scores.masked_fill(~row_mask, float("-inf")) if chooses else scores + row_mask
    return scores.softmax(-1)


def backward(
    dq: Tensor, dk: Tensor, drow: Tensor, q: Tensor, k: Tensor, rows: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """dq and dk with the row's gradients added."""
    weighted = rows * (drow.unsqueeze(1) / rows.shape[1])
    dS = (weighted - rows * weighted.sum(-1, keepdim=True)).to(k.dtype)  # [B, heads, N]
    if k.is_contiguous():
        dquery = (dS.unsqueeze(2) @ k).squeeze(2)  # [B, heads, d]
    else:  # every head with all keys, where they lie, and then its own block
        products = dS @ k.transpose(1, 2).flatten(2)  # [B, heads, heads * d]
        dquery = products.unflatten(2, (q.shape[1], -1)).diagonal(dim1=1, dim2=2).mT
    dk = torch.addcmul(dk, dS.unsqueeze(-1), q[:, :, :1], value=scale)
    dq = dq.clone()
    dq[:, :, 0] += scale * dquery
    return dq, dk
