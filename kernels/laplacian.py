"""The five diagonals of L = (D - A) o (lam E - 1), and their gradient; see `scm_fast.ops.laplacian`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launching import on_device_of

_BLOCK = 128


@triton.jit
def _edge_masks(o, N, W):
    """Tell whether each token has a right, left, lower and upper neighbour."""
    m = o < N
    return m & (o % W < W - 1), m & (o % W > 0), o < N - W, m & (o >= W)


@triton.jit
def laplacian_forward_kernel(
    edges,  # [B, 2, H, W]
    lam,
    L,  # [B, N, N], zeros
    H,
    W,
    BLOCK: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    N = H * W
    m_right, m_left, m_down, m_up = _edge_masks(o, N, W)
    p_edges = edges + i_b * 2 * N + o
    lam = tl.load(lam).to(edges.dtype.element_ty)
    degree = m_right.to(tl.int32) + m_left.to(tl.int32) + m_down.to(tl.int32) + m_up.to(tl.int32)
    p_diagonal = L + i_b * N * N + o.to(tl.int64) * (N + 1)
    tl.store(p_diagonal, degree * (lam - 1), mask=o < N)
    tl.store(p_diagonal + 1, 1 - lam * tl.load(p_edges, mask=m_right, other=0.0), mask=m_right)
    tl.store(p_diagonal - 1, 1 - lam * tl.load(p_edges - 1, mask=m_left, other=0.0), mask=m_left)
    tl.store(p_diagonal + W, 1 - lam * tl.load(p_edges + N, mask=m_down, other=0.0), mask=m_down)
    tl.store(p_diagonal - W, 1 - lam * tl.load(p_edges + N - W, mask=m_up, other=0.0), mask=m_up)


@triton.jit
def laplacian_backward_kernel(
    dL,
    edges,  # [B, 2, H, W]
    lam,
    dedges,  # [B, 2, H, W]
    dlam,  # [B, programs]: every program's share
    stride_b,
    stride_row,
    stride_column,
    H,
    W,
    BLOCK: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    N = H * W
    m = o < N
    m_right, m_left, m_down, m_up = _edge_masks(o, N, W)
    lam = tl.load(lam).to(edges.dtype.element_ty)
    degree = m_right.to(tl.int32) + m_left.to(tl.int32) + m_down.to(tl.int32) + m_up.to(tl.int32)
    p_diagonal = dL + i_b * stride_b + o.to(tl.int64) * (stride_row + stride_column)
    b_right = tl.load(p_diagonal + stride_column, mask=m_right, other=0.0)
    b_right += tl.load(p_diagonal + stride_row, mask=m_right, other=0.0)
    b_down = tl.load(p_diagonal + W * stride_column, mask=m_down, other=0.0)
    b_down += tl.load(p_diagonal + W * stride_row, mask=m_down, other=0.0)
    p_edges, p_dedges = edges + i_b * 2 * N + o, dedges + i_b * 2 * N + o
    tl.store(p_dedges, -lam * b_right, mask=m)
    tl.store(p_dedges + N, -lam * b_down, mask=m)
    b_dlam = degree * tl.load(p_diagonal, mask=m, other=0.0)
    b_dlam -= b_right * tl.load(p_edges, mask=m_right, other=0.0)
    b_dlam -= b_down * tl.load(p_edges + N, mask=m_down, other=0.0)
    tl.store(dlam + i_b * tl.num_programs(1) + tl.program_id(1), tl.sum(b_dlam, 0))


def forward(edges: Tensor, lam: Tensor) -> Tensor:
    """L (B, N, N): cleared, then its diagonals written."""
    B, _, H, W = edges.shape
    L = edges.new_zeros(B, H * W, H * W)
    grid = (B, triton.cdiv(H * W, _BLOCK))
    with on_device_of(edges):
        laplacian_forward_kernel[grid](edges.contiguous(), lam, L, H, W, BLOCK=_BLOCK, num_warps=4)
    return L


def backward(dL: Tensor, edges: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """dedges (B, 2, H, W), and dlam in the shape and dtype of lam."""
    B, _, H, W = edges.shape
    grid = (B, triton.cdiv(H * W, _BLOCK))
    dedges, dlam = edges.new_empty(edges.shape), edges.new_empty(grid)
    with on_device_of(edges):
        laplacian_backward_kernel[grid](
            dL, edges.contiguous(), lam, dedges, dlam, *dL.stride(), H, W, BLOCK=_BLOCK, num_warps=4
        )
    return dedges, dlam.sum().to(lam.dtype).view(lam.shape)
