"""Weighted pooling of S and the gradient of its weights: one matrix-vector kernel; see `scm_fast.ops.pooling`.

out_r = (1/N) sum_k S[r, k] x_k        rows r are channels and k tokens, or the other way round
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import Layout, item_offset, on_device_of, vector_of_channels, vector_of_tokens


@triton.jit
def matrix_vector_kernel(
    S,
    x,  # [B, columns]
    out,  # [B, rows]
    tokens,
    stride_b,  # in units of both vectors
    row_width,  # these three are the `Layout` of the rows, in units of COLUMN_VECTOR
    row_stride,
    row_inner,
    column_width,  # and these of the columns, in units of ROW_VECTOR
    column_stride,
    column_inner,
    row_vectors,
    column_vectors,
    ROW_VECTOR: tl.constexpr,
    COLUMN_VECTOR: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    rows, columns = row_vectors * ROW_VECTOR, column_vectors * COLUMN_VECTOR
    o_r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    m_r = o_r < rows
    S += i_b * stride_b * (ROW_VECTOR * COLUMN_VECTOR)
    p_row = S + item_offset(o_r, (row_width, row_stride, row_inner), COLUMN_VECTOR)[:, None]
    b_out = tl.zeros([BLOCK_R, BLOCK_K], DTYPE)  # reduced once, after the last column
    for i_k in range(0, columns, BLOCK_K):
        o_k = i_k + tl.arange(0, BLOCK_K)
        m_k = o_k < columns
        pointers = p_row + item_offset(o_k, (column_width, column_stride, column_inner), ROW_VECTOR)[None, :]
        b_S = tl.load(pointers, mask=m_r[:, None] & m_k[None, :], other=0.0).to(DTYPE)
        b_x = tl.load(x + i_b * columns + o_k, mask=m_k, other=0.0).to(DTYPE)
        b_out += b_S * b_x[None, :]
    tl.store(out + i_b * rows + o_r, tl.sum(b_out, 1) / tokens, mask=m_r)


def _launch(S: Tensor, x: Tensor, out: Tensor, rows_are_tokens: bool) -> Tensor:
    channel_vector, token_vector = vector_of_channels(S), vector_of_tokens(S)
    vectors = (token_vector, channel_vector) if rows_are_tokens else (channel_vector, token_vector)
    layouts = Layout.of_tokens(S), Layout.of_channels(S)
    row_layout, column_layout = layouts if rows_are_tokens else layouts[::-1]
    rows, columns = out[0].numel(), x[0].numel()
    wide_rows = rows_are_tokens == (S.stride(3) == 1)
    # A lane that takes 8 numbers of S loads as many of x, by halves of sectors: many rows share them then.
    block_r, block_k = (64, 16) if wide_rows else (64, 128) if channel_vector == 8 else (16, 64)
    with on_device_of(S):
        matrix_vector_kernel[(S.shape[0], triton.cdiv(rows, block_r))](
            S,
            x.contiguous(),
            out,
            S.shape[2] * S.shape[3],
            S.stride(0) // math.prod(vectors),
            *row_layout.in_vectors(vectors[1]),
            *column_layout.in_vectors(vectors[0]),
            rows // vectors[0],
            columns // vectors[1],
            ROW_VECTOR=vectors[0],
            COLUMN_VECTOR=vectors[1],
            DTYPE=tl.float64 if out.dtype == torch.float64 else tl.float32,
            BLOCK_R=block_r,
            BLOCK_K=block_k,
            num_warps=4,
        )
    return out


def pool(S: Tensor, weight: Tensor) -> Tensor:
    """mean_n S[:, c, n] weight[:, n]: (B, C, H, W), (B, H, W) -> (B, C)."""
    return _launch(S, weight, weight.new_empty(S.shape[:2]), rows_are_tokens=False)


def pool_weight(S: Tensor, dpooled: Tensor) -> Tensor:
    """sum_c dpooled[:, c] S[:, c, n] / N: (B, C, H, W), (B, C) -> (B, H, W)."""
    return _launch(S, dpooled, dpooled.new_empty(S.shape[0], *S.shape[2:]), rows_are_tokens=True)
