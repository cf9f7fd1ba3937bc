"""Weighted pooling of S and the gradient of its weights: one matrix-vector kernel; see `scm_fast.ops.pooling`.

out_r = (1/N) sum_k S[r, k] x_k        rows r are channels and k tokens, or the other way round
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def matrix_vector_kernel(
    S,
    x,  # [B, columns]
    out,  # [B, rows]
    tokens,
    stride_b,
    row_stride,  # of a row r = r1 * row_width + r0, in r1
    row_stride_inner,  # and in r0
    column_stride,
    column_stride_inner,
    rows,
    row_width,
    columns,
    column_width,
    DTYPE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    o_r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    m_r = o_r < rows
    o_row = (o_r // row_width).to(tl.int64) * row_stride + (o_r % row_width) * row_stride_inner
    b_out = tl.zeros([BLOCK_R], DTYPE)
    for i_k in range(0, columns, BLOCK_K):
        o_k = i_k + tl.arange(0, BLOCK_K)
        m_k = o_k < columns
        o_column = (o_k // column_width).to(tl.int64) * column_stride + (
            o_k % column_width
        ) * column_stride_inner
        pointers = S + i_b * stride_b + o_row[:, None] + o_column[None, :]
        b_S = tl.load(pointers, mask=m_r[:, None] & m_k[None, :], other=0.0).to(DTYPE)
        b_x = tl.load(x + i_b * columns + o_k, mask=m_k, other=0.0).to(DTYPE)
        b_out += tl.sum(b_S * b_x[None, :], 1)
    tl.store(out + i_b * rows + o_r, b_out / tokens, mask=m_r)


def _launch(S: Tensor, x: Tensor, out: Tensor, rows: tuple[int, ...], columns: tuple[int, ...]) -> Tensor:
    """`rows` and `columns` are (count, stride, width, inner stride) of the two index spaces of S."""
    token_contiguous = S.stride(3) == 1
    rows_are_tokens = out.ndim == 3
    wide_rows = rows_are_tokens == token_contiguous
    block_r, block_k = (64, 16) if wide_rows else (16, 64)
    matrix_vector_kernel[(S.shape[0], triton.cdiv(rows[0], block_r))](
        S,
        x.contiguous(),
        out,
        S.shape[2] * S.shape[3],
        S.stride(0),
        rows[1],
        rows[3],
        columns[1],
        columns[3],
        rows[0],
        rows[2],
        columns[0],
        columns[2],
        DTYPE=tl.float64 if out.dtype == torch.float64 else tl.float32,
        BLOCK_R=block_r,
        BLOCK_K=block_k,
        num_warps=4,
    )
    return out


def _index_spaces(S: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Channels and tokens of S as (count, stride, width, inner stride)."""
    _, C, H, W = S.shape
    return (C, S.stride(1), 1, 0), (H * W, S.stride(2), W, S.stride(3))


def pool(S: Tensor, weight: Tensor) -> Tensor:
    """mean_n S[:, c, n] weight[:, n]: (B, C, H, W), (B, H, W) -> (B, C)."""
    channels, tokens = _index_spaces(S)
    return _launch(S, weight, weight.new_empty(S.shape[:2]), channels, tokens)


def pool_weight(S: Tensor, dpooled: Tensor) -> Tensor:
    """sum_c dpooled[:, c] S[:, c, n] / N: (B, C, H, W), (B, C) -> (B, H, W)."""
    channels, tokens = _index_spaces(S)
    return _launch(S, dpooled, dpooled.new_empty(S.shape[0], *S.shape[2:]), tokens, channels)
