"""The fused matrix products of the Newton-Schulz chains; see `scm_fast.ops.newton_schulz`.

One kernel, a tile of the result a program:

    out = SCALE * (A B [+ B A]) + ADD_SCALE * add + IDENTITY * I - [x y^T [+ y x^T]]
    v_out = 2 v - A v

Where the result is symmetric only the tiles on and above the diagonal are computed, and stored twice. The
programs of the diagonal tiles see all of A's rows, and take the matrix-vector product along.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import on_device_of


@triton.jit
def _load_matrix(p, o_row, o_column, stride_row, stride_column, N):
    pointers = p + o_row[:, None] * stride_row + o_column[None, :] * stride_column
    return tl.load(pointers, mask=(o_row < N)[:, None] & (o_column < N)[None, :], other=0.0)


@triton.jit
def product_kernel(
    A,
    B,
    add,  # or None
    out,  # [B, N, N], contiguous
    x,  # [B, N] or None, as y
    y,
    v,  # [B, N] or None, as v_out
    v_out,
    N,
    a_stride_b,
    a_stride_row,
    a_stride_column,
    b_stride_b,
    b_stride_row,
    b_stride_column,
    add_stride_b,
    add_stride_row,
    add_stride_column,
    SCALE: tl.constexpr,
    ADD_SCALE: tl.constexpr,
    IDENTITY: tl.constexpr,
    TWO_SIDED: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    i_b = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(N, BLOCK)
    i_row, i_column = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    if SYMMETRIC and i_row > i_column:
        return
    o_row = i_row * BLOCK + tl.arange(0, BLOCK)
    o_column = i_column * BLOCK + tl.arange(0, BLOCK)
    A += i_b * a_stride_b
    B += i_b * b_stride_b
    b_out = tl.zeros([BLOCK, BLOCK], DTYPE)
    b_v = tl.zeros([BLOCK], DTYPE)
    for i_k in range(0, N, BLOCK_K):
        o_k = i_k + tl.arange(0, BLOCK_K)
        b_a = _load_matrix(A, o_row, o_k, a_stride_row, a_stride_column, N)
        b_b = _load_matrix(B, o_k, o_column, b_stride_row, b_stride_column, N)
        b_out = tl.dot(b_a, b_b, b_out, input_precision="ieee", out_dtype=DTYPE)
        if v is not None:
            b_v += tl.sum(b_a * tl.load(v + i_b * N + o_k, mask=o_k < N, other=0.0)[None, :], 1)
        if TWO_SIDED:
            b_b = _load_matrix(B, o_row, o_k, b_stride_row, b_stride_column, N)
            b_a = _load_matrix(A, o_k, o_column, a_stride_row, a_stride_column, N)
            b_out = tl.dot(b_b, b_a, b_out, input_precision="ieee", out_dtype=DTYPE)
    b_out *= SCALE
    if add is not None:
        add += i_b * add_stride_b
        b_add = _load_matrix(add, o_row, o_column, add_stride_row, add_stride_column, N)
        b_out += ADD_SCALE * b_add
    b_out += tl.where(o_row[:, None] == o_column[None, :], IDENTITY, 0.0)
    if x is not None:
        b_x = tl.load(x + i_b * N + o_row, mask=o_row < N, other=0.0)
        b_y = tl.load(y + i_b * N + o_column, mask=o_column < N, other=0.0)
        b_out -= b_x[:, None] * b_y[None, :]
        if SYMMETRIC:
            b_y = tl.load(y + i_b * N + o_row, mask=o_row < N, other=0.0)
            b_x = tl.load(x + i_b * N + o_column, mask=o_column < N, other=0.0)
            b_out -= b_y[:, None] * b_x[None, :]
    m_out = (o_row < N)[:, None] & (o_column < N)[None, :]
    out += i_b * N * N
    tl.store(out + o_row[:, None] * N + o_column[None, :], b_out, mask=m_out)
    if SYMMETRIC and i_row < i_column:
        tl.store(out + o_column[None, :] * N + o_row[:, None], b_out, mask=m_out)
    if v is not None and i_row == i_column:
        b_own = tl.load(v + i_b * N + o_row, mask=o_row < N, other=0.0)
        tl.store(v_out + i_b * N + o_row, 2 * b_own - b_v, mask=o_row < N)


@triton.jit
def complement_vector_kernel(P, v, v_out, N, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    """v_out = 2 v - P v for contiguous P [B, N, N], v [B, N]."""
    i_b = tl.program_id(1).to(tl.int64)
    o_row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_own = tl.load(v + i_b * N + o_row, mask=o_row < N, other=0.0)
    b_v = tl.zeros_like(b_own)
    for i_k in range(0, N, BLOCK_K):
        o_k = i_k + tl.arange(0, BLOCK_K)
        b_P = _load_matrix(P + i_b * N * N, o_row, o_k, N, 1, N)
        b_v += tl.sum(b_P * tl.load(v + i_b * N + o_k, mask=o_k < N, other=0.0)[None, :], 1)
    tl.store(v_out + i_b * N + o_row, 2 * b_own - b_v, mask=o_row < N)


def _launch_options(N: int, dtype: torch.dtype, two_sided: bool) -> dict:
    """Tiles of 32 x 32: 196 tokens pad to 224, and no target spills registers on an exact float32 product.

    A two-sided one has twice the operands, and so takes half of them at a time, with twice the warps.
    """
    return {
        "DTYPE": tl.float64 if dtype == torch.float64 else tl.float32,
        "BLOCK": min(32, max(16, triton.next_power_of_2(N))),
        "BLOCK_K": 16 if two_sided else 32,
        "num_warps": 8 if two_sided else 4,
    }


def _product(
    A: Tensor,
    B: Tensor,
    out: Tensor,
    scale: float,
    identity: float = 0.0,
    add: Tensor | None = None,
    add_scale: float = 1.0,
    outer: tuple[Tensor | None, Tensor | None] = (None, None),
    v: Tensor | None = None,
    two_sided: bool = False,
    symmetric: bool = False,
) -> tuple[Tensor, Tensor | None]:
    batch, N, _ = A.shape
    options = _launch_options(N, A.dtype, two_sided)
    v_out = None if v is None else torch.empty_like(v)
    with on_device_of(A):
        product_kernel[(triton.cdiv(N, options["BLOCK"]) ** 2, batch)](
            A,
            B,
            add,
            out,
            *outer,
            v,
            v_out,
            N,
            *A.stride(),
            *B.stride(),
            *((0, 0, 0) if add is None else add.stride()),
            SCALE=scale,
            ADD_SCALE=add_scale,
            IDENTITY=identity,
            TWO_SIDED=two_sided,
            SYMMETRIC=symmetric,
            **options,
        )
    return out, v_out


def product(A: Tensor, B: Tensor, scale: float, identity: float, add: Tensor | None, out: Tensor) -> Tensor:
    """Compute out = scale * A B + identity * I + add."""
    return _product(A, B, out, scale, identity, add)[0]


def complement_step(P: Tensor, w: Tensor, out: Tensor | None) -> Tensor:
    """Returns 2w - P w; `out` receives 2P - P P unless it is None. P is symmetric."""
    w = w.contiguous()
    if out is not None:
        return _product(P, P, out, -1.0, add=P, add_scale=2.0, v=w, symmetric=True)[1]
    following = torch.empty_like(w)
    grid = (triton.cdiv(P.shape[1], 16), P.shape[0])
    with on_device_of(P):
        complement_vector_kernel[grid](P, w, following, P.shape[1], BLOCK=16, BLOCK_K=64, num_warps=4)
    return following


def adjoint_step(G: Tensor, P: Tensor, dw: Tensor, w: Tensor, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Returns 2G - G P - P G - dw w^T (with `symmetric`: and its transpose) and 2dw - P dw. P is symmetric."""
    return _product(
        P,
        G,
        torch.empty_like(G),
        -1.0,
        add=G,
        add_scale=2.0,
        outer=(dw.contiguous(), w.contiguous()),
        v=dw.contiguous(),
        two_sided=True,
        symmetric=symmetric,
    )
