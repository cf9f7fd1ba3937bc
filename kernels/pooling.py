"""Weighted pooling of S and the gradient of its weights: one matrix-vector kernel; see `scm_fast.ops.pooling`.

out_r = (1/N) sum_k S[r, k] x_k        rows r are channels and k tokens, or the other way round
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import Layout, item_offset, on_device_of


@triton.jit
def matrix_vector_kernel(
    S,
    x,  # [B, columns]
    out,  # [B, rows]
    tokens,
    stride_b,
    row_width,  # these three are the `Layout` of the rows
    row_stride,
    row_inner,
    column_width,
    column_stride,
    column_inner,
    rows,
    columns,
    DTYPE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    o_r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    m_r = o_r < rows
    p_row = S + i_b * stride_b + item_offset(o_r, (row_width, row_stride, row_inner))[:, None]
    b_out = tl.zeros([BLOCK_R, BLOCK_K], DTYPE)  # reduced once, after the last column
    for i_k in range(0, columns, BLOCK_K):
        o_k = i_k + tl.arange(0, BLOCK_K)
        m_k = o_k < columns
        pointers = p_row + item_offset(o_k, (column_width, column_stride, column_inner))[None, :]
        b_S = tl.load(pointers, mask=m_r[:, None] & m_k[None, :], other=0.0).to(DTYPE)
        b_x = tl.load(x + i_b * columns + o_k, mask=m_k, other=0.0).to(DTYPE)
        b_out += b_S * b_x[None, :]
    tl.store(out + i_b * rows + o_r, tl.sum(b_out, 1) / tokens, mask=m_r)


def _launch(S: Tensor, x: Tensor, out: Tensor, row_layout: Layout, column_layout: Layout) -> Tensor:
    rows, columns = out[0].numel(), x[0].numel()
    token_contiguous = S.stride(3) == 1
    rows_are_tokens = out.ndim == 3
    wide_rows = rows_are_tokens == token_contiguous
    block_r, block_k = (64, 16) if wide_rows else (16, 64)
    with on_device_of(S):
        matrix_vector_kernel[(S.shape[0], triton.cdiv(rows, block_r))](
            S,
            x.contiguous(),
            out,
            S.shape[2] * S.shape[3],
            S.stride(0),
            *row_layout,
            *column_layout,
            rows,
            columns,
            DTYPE=tl.float64 if out.dtype == torch.float64 else tl.float32,
            BLOCK_R=block_r,
            BLOCK_K=block_k,
            num_warps=4,
        )
    return out


def pool(S: Tensor, weight: Tensor) -> Tensor:
    """mean_n S[:, c, n] weight[:, n]: (B, C, H, W), (B, H, W) -> (B, C)."""
    return _launch(S, weight, weight.new_empty(S.shape[:2]), Layout.of_channels(S), Layout.of_tokens(S))


def pool_weight(S: Tensor, dpooled: Tensor) -> Tensor:
    """sum_c dpooled[:, c] S[:, c, n] / N: (B, C, H, W), (B, C) -> (B, H, W)."""
    dweight = dpooled.new_empty(S.shape[0], *S.shape[2:])
    return _launch(S, dpooled, dweight, Layout.of_tokens(S), Layout.of_channels(S))
