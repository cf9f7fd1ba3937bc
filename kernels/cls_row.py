"""The CLS token's attention row in one launch, its gradients in another; see `scm_fast.ops.cls_row`.

P_hn = softmax_n(scale <q_h0, k_hn>),   row_n = (1/heads) sum_h P_hn,   G = drow / heads
dS_hn = P_hn (G_n - sum_n P_hn G_n),   dk_hn += scale dS_hn q_h0,   dq_h0 += scale sum_n dS_hn k_hn

Forward, a program has an image, so that the mean over the heads needs no launch of its own; backward, a head of an
image. A program holds all tokens and goes over the d elements of a head in tiles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import on_device_of

# Elements of a tile; the backward kernel has three at a time.
_FORWARD_TILE, _BACKWARD_TILE = 16384, 8192


@triton.jit
def cls_row_forward_kernel(
    q,
    k,
    row,  # [B, N]
    rows,  # [B, heads, N]
    q_stride_b,
    q_stride_h,
    k_stride_b,
    k_stride_h,
    k_stride_n,
    heads,
    N,
    d,
    SCALE: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    m_n = o_n < N
    b_row = tl.zeros([BLOCK_N], DTYPE)
    for i_h in range(0, heads):
        p_q = q + i_b * q_stride_b + i_h * q_stride_h
        p_k = k + i_b * k_stride_b + i_h * k_stride_h + o_n[:, None].to(tl.int64) * k_stride_n
        b_scores = tl.zeros([BLOCK_N], DTYPE)
        for i_d in range(0, d, BLOCK_D):
            o_d = i_d + tl.arange(0, BLOCK_D)
            m_d = o_d < d
            b_q = tl.load(p_q + o_d, mask=m_d, other=0.0).to(DTYPE) * SCALE
            b_k = tl.load(p_k + o_d[None, :], mask=m_n[:, None] & m_d[None, :], other=0.0).to(DTYPE)
            b_scores += tl.sum(b_k * b_q[None, :], 1)
        b_scores = tl.where(m_n, b_scores, float("-inf"))
        b_P = tl.exp(b_scores - tl.max(b_scores, 0))
        b_P = b_P / tl.sum(b_P, 0)
        tl.store(rows + (i_b * heads + i_h) * N + o_n, b_P, mask=m_n)
        b_row += b_P
    tl.store(row + i_b * N + o_n, b_row / heads, mask=m_n)


@triton.jit
def cls_row_backward_kernel(
    drow,
    rows,  # [B, heads, N]
    q,
    k,
    dq,  # of the attention; these two are read
    dk,
    dq_sum,  # with the row's share; these two are written
    dk_sum,
    drow_stride_b,
    drow_stride_n,
    q_stride_b,
    q_stride_h,
    k_stride_b,
    k_stride_h,
    k_stride_n,
    dq_stride_b,
    dq_stride_h,
    dq_stride_n,
    dk_stride_b,
    dk_stride_h,
    dk_stride_n,
    dq_sum_stride_b,
    dq_sum_stride_h,
    dq_sum_stride_n,
    dk_sum_stride_b,
    dk_sum_stride_h,
    dk_sum_stride_n,
    heads,
    N,
    d,
    SCALE: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    i_b, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N).to(tl.int64)
    m_n = o_n < N
    b_P = tl.load(rows + (i_b * heads + i_h) * N + o_n, mask=m_n, other=0.0)
    b_G = tl.load(drow + i_b * drow_stride_b + o_n * drow_stride_n, mask=m_n, other=0.0).to(DTYPE) / heads
    b_dS = b_P * (b_G - tl.sum(b_P * b_G, 0)) * SCALE
    p_q = q + i_b * q_stride_b + i_h * q_stride_h
    p_k = k + i_b * k_stride_b + i_h * k_stride_h + o_n[:, None] * k_stride_n
    p_dq = dq + i_b * dq_stride_b + i_h * dq_stride_h + o_n[:, None] * dq_stride_n
    p_dk = dk + i_b * dk_stride_b + i_h * dk_stride_h + o_n[:, None] * dk_stride_n
    p_dq_sum = dq_sum + i_b * dq_sum_stride_b + i_h * dq_sum_stride_h + o_n[:, None] * dq_sum_stride_n
    p_dk_sum = dk_sum + i_b * dk_sum_stride_b + i_h * dk_sum_stride_h + o_n[:, None] * dk_sum_stride_n
    is_cls = (o_n == 0)[:, None]
    for i_d in range(0, d, BLOCK_D):
        o_d = (i_d + tl.arange(0, BLOCK_D))[None, :]
        m_d = o_d < d
        mask = m_n[:, None] & m_d
        b_k = tl.load(p_k + o_d, mask=mask, other=0.0).to(DTYPE)
        b_dquery = tl.sum(b_dS[:, None] * b_k, 0)[None, :]
        b_dq = tl.load(p_dq + o_d, mask=mask, other=0.0).to(DTYPE)
        tl.store(p_dq_sum + o_d, tl.where(is_cls, b_dq + b_dquery, b_dq), mask=mask)
        b_q = tl.load(p_q + o_d, mask=m_d, other=0.0).to(DTYPE)
        b_dk = tl.load(p_dk + o_d, mask=mask, other=0.0).to(DTYPE) + b_dS[:, None] * b_q
        tl.store(p_dk_sum + o_d, b_dk, mask=mask)


def _settings(rows: Tensor, d: int, scale: float, tile: int) -> dict[str, object]:
    block_n = triton.next_power_of_2(rows.shape[2])
    block_d = min(triton.next_power_of_2(d), max(1, tile // block_n))
    return {
        "SCALE": scale,
        "DTYPE": tl.float64 if rows.dtype == torch.float64 else tl.float32,
        "BLOCK_N": block_n,
        "BLOCK_D": block_d,
        # A tile of few elements is for few warps, which would otherwise hold copies of it.
        "num_warps": min(8, max(2, block_n * block_d // 512)),
    }


def _side_by_side(x: Tensor) -> Tensor:
    """x with the elements of a head side by side; the kernels have no stride for them."""
    return x if x.stride(3) == 1 else x.contiguous()


def forward(q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """row (B, N) and the rows of the heads (B, heads, N), in float32, or float64 where q is."""
    q, k = _side_by_side(q), _side_by_side(k)
    B, heads, N, d = k.shape
    dtype = torch.promote_types(q.dtype, torch.float32)
    row, rows = q.new_empty(B, N, dtype=dtype), q.new_empty(B, heads, N, dtype=dtype)
    with on_device_of(q):
        cls_row_forward_kernel[(B,)](
            q,
            k,
            row,
            rows,
            *q.stride()[:2],
            *k.stride()[:3],
            heads,
            N,
            d,
            **_settings(rows, d, scale, _FORWARD_TILE),
        )
    return row, rows


def backward(
    dq: Tensor, dk: Tensor, drow: Tensor, q: Tensor, k: Tensor, rows: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """dq and dk with the row's gradients added."""
    q, k, dq, dk = (_side_by_side(x) for x in (q, k, dq, dk))
    B, heads, N, d = k.shape
    # Laid out as the projection that q and k are slices of.
    dq_sum, dk_sum = (x.new_empty(B, N, heads, d).transpose(1, 2) for x in (dq, dk))
    with on_device_of(q):
        cls_row_backward_kernel[(B, heads)](
            drow,
            rows,
            q,
            k,
            dq,
            dk,
            dq_sum,
            dk_sum,
            *drow.stride(),
            *q.stride()[:2],
            *k.stride()[:3],
            *dq.stride()[:3],
            *dk.stride()[:3],
            *dq_sum.stride()[:3],
            *dk_sum.stride()[:3],
            heads,
            N,
            d,
            **_settings(rows, d, scale, _BACKWARD_TILE),
        )
    return dq_sum, dk_sum
