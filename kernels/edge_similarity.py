"""Cosines on the edges of the token grid, one pass over S; see `scm_fast.ops.edge_similarity`.

    E_ij = <v_i, v_j> / (|v_i| |v_j|)
    dv_i = sum_j a_ij v_j + a_ii v_i + weight_i dpooled / N,   a_ij = dE_ij / (|v_i| |v_j|),
                                                               a_ii = -sum_j dE_ij E_ij / |v_i|^2

A program takes BLOCK_T tokens of one image and walks their channels. A neighbour's vector is loaded where it
lies (the cache has it), so no lane needs another's data. Sums over channels are kept for every place of the tile,
and reduced after the last one. Any strides of S will do.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import Layout, item_offset, on_device_of

# Where the compiler knows that every channel of a contiguous map begins at a multiple of 16, it gives a lane four
# tokens side by side, and the loads of neighbours, which are not aligned, take four times the memory sectors.
_jit = triton.jit(do_not_specialize_on_alignment=["stride_c", "out_stride_c"])


@triton.jit
def _load_tile(S, o, m, o_c, m_c, stride_c, layout, DTYPE: tl.constexpr):
    """[BLOCK_T, BLOCK_C] of one image, 0 outside."""
    pointers = S + item_offset(o, layout)[:, None] + (o_c.to(tl.int64) * stride_c)[None, :]
    return tl.load(pointers, mask=m[:, None] & m_c[None, :], other=0.0).to(DTYPE)


@triton.jit
def _inverse_root(b_square):
    """1 / sqrt(x), and 0 for 0. The root must be exact: `tl.sqrt` of float32 takes subnormal numbers for 0."""
    b_safe = tl.where(b_square == 0, 1.0, b_square)
    b_root = tl.sqrt_rn(b_safe) if b_safe.dtype == tl.float32 else tl.sqrt(b_safe)
    return tl.where(b_square == 0, 0.0, 1 / b_root)


@_jit
def edge_similarity_forward_kernel(
    S,
    edges,  # [B, 2, H, W]
    inverse_norm,  # [B, H, W]
    stride_b,
    stride_c,
    width,  # these three are the `Layout` of S's tokens
    stride_t,
    inner_t,
    C,
    H,
    W,
    DTYPE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    N = H * W
    m = o < N
    m_right, m_down = m & (o % W < W - 1), o < N - W
    S += i_b * stride_b
    layout = (width, stride_t, inner_t)
    b_own = tl.zeros([BLOCK_T, BLOCK_C], DTYPE)  # |v_i|^2
    b_right, b_right_own, b_down, b_down_own = b_own, b_own, b_own, b_own
    for i_c in range(0, C, BLOCK_C):
        o_c = i_c + tl.arange(0, BLOCK_C)
        m_c = o_c < C
        b_v = _load_tile(S, o, m, o_c, m_c, stride_c, layout, DTYPE)
        b_own += b_v * b_v
        b_next = _load_tile(S, o + 1, m_right, o_c, m_c, stride_c, layout, DTYPE)
        b_right += b_v * b_next
        b_right_own += b_next * b_next
        b_next = _load_tile(S, o + W, m_down, o_c, m_c, stride_c, layout, DTYPE)
        b_down += b_v * b_next
        b_down_own += b_next * b_next
    b_inverse = _inverse_root(tl.sum(b_own, 1))
    p_edges = edges + i_b * 2 * N + o
    b_edge = tl.sum(b_right, 1) * b_inverse * _inverse_root(tl.sum(b_right_own, 1))
    tl.store(p_edges, b_edge, mask=m)
    b_edge = tl.sum(b_down, 1) * b_inverse * _inverse_root(tl.sum(b_down_own, 1))
    tl.store(p_edges + N, b_edge, mask=m)
    tl.store(inverse_norm + i_b * N + o, b_inverse, mask=m)


@triton.jit
def _neighbour_weight(p_dedges, p_edges, p_inverse, m):
    """dE_ij / |v_j| and dE_ij E_ij of one neighbour j."""
    b_dedge = tl.load(p_dedges, mask=m, other=0.0)
    return b_dedge * tl.load(p_inverse, mask=m, other=0.0), b_dedge * tl.load(p_edges, mask=m, other=0.0)


@_jit
def edge_similarity_backward_kernel(
    S,
    edges,  # [B, 2, H, W]
    inverse_norm,  # [B, H, W]
    dedges,  # [B, 2, H, W]
    weight,  # [B, H, W] or None
    dpooled,  # [B, C] or None
    dS,
    dparameters,  # [B, 2, L] or None: summed over the images by the first program
    dlam,  # [L]
    dbeta,  # [L]
    stride_b,
    stride_c,
    width,  # these three are the `Layout` of S's tokens
    stride_t,
    inner_t,
    out_stride_b,
    out_stride_c,
    out_width,
    out_stride_t,
    out_inner_t,
    B,
    C,
    H,
    W,
    NUM_BLOCKS,
    DTYPE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    N = H * W
    if dparameters is not None:  # noqa: SIM102 (decided when compiling)
        if (i_b == 0) & (tl.program_id(1) == 0):
            for i_l in range(NUM_BLOCKS):
                b_lam, b_beta = tl.zeros([BLOCK_T], DTYPE), tl.zeros([BLOCK_T], DTYPE)
                for i in range(0, B, BLOCK_T):
                    o_b = i + tl.arange(0, BLOCK_T)
                    p_share = dparameters + o_b * 2 * NUM_BLOCKS + i_l
                    b_lam += tl.load(p_share, mask=o_b < B, other=0.0)
                    b_beta += tl.load(p_share + NUM_BLOCKS, mask=o_b < B, other=0.0)
                tl.store(dlam + i_l, tl.sum(b_lam, 0))
                tl.store(dbeta + i_l, tl.sum(b_beta, 0))
    m = o < N
    m_right, m_left = m & (o % W < W - 1), m & (o % W > 0)
    m_down, m_up = o < N - W, m & (o >= W)
    p_edges, p_dedges, p_inverse = (
        edges + i_b * 2 * N + o,
        dedges + i_b * 2 * N + o,
        inverse_norm + i_b * N + o,
    )
    b_inverse = tl.load(p_inverse, mask=m, other=0.0)
    b_right, b_own_right = _neighbour_weight(p_dedges, p_edges, p_inverse + 1, m_right)
    b_left, b_own_left = _neighbour_weight(p_dedges - 1, p_edges - 1, p_inverse - 1, m_left)
    b_down, b_own_down = _neighbour_weight(p_dedges + N, p_edges + N, p_inverse + W, m_down)
    b_up, b_own_up = _neighbour_weight(p_dedges + N - W, p_edges + N - W, p_inverse - W, m_up)
    b_own = -(b_own_right + b_own_left + b_own_down + b_own_up) * b_inverse
    if weight is not None:
        b_weight = tl.load(weight + i_b * N + o, mask=m, other=0.0) / N
    S += i_b * stride_b
    layout = (width, stride_t, inner_t)
    p_dS = dS + i_b * out_stride_b + item_offset(o, (out_width, out_stride_t, out_inner_t))[:, None]
    for i_c in range(0, C, BLOCK_C):
        o_c = i_c + tl.arange(0, BLOCK_C)
        m_c = o_c < C
        b_dv = b_own[:, None] * _load_tile(S, o, m, o_c, m_c, stride_c, layout, DTYPE)
        b_dv += b_right[:, None] * _load_tile(S, o + 1, m_right, o_c, m_c, stride_c, layout, DTYPE)
        b_dv += b_left[:, None] * _load_tile(S, o - 1, m_left, o_c, m_c, stride_c, layout, DTYPE)
        b_dv += b_down[:, None] * _load_tile(S, o + W, m_down, o_c, m_c, stride_c, layout, DTYPE)
        b_dv += b_up[:, None] * _load_tile(S, o - W, m_up, o_c, m_c, stride_c, layout, DTYPE)
        b_dv *= b_inverse[:, None]
        if weight is not None:
            b_dpooled = tl.load(dpooled + i_b * C + o_c, mask=m_c, other=0.0).to(DTYPE)
            b_dv += b_weight[:, None] * b_dpooled[None, :]
        tl.store(p_dS + (o_c.to(tl.int64) * out_stride_c)[None, :], b_dv, mask=m[:, None] & m_c[None, :])


def _launch_options(S: Tensor, last_tokens: int) -> dict:
    """Tile sizes: long along whichever of tokens and channels is contiguous in memory.

    Chosen so that registers hold them: float64 takes twice as many, and a grid of at most 64 tokens is not aligned.

    last_tokens: of a tile of a channels-last map.
    """
    double = S.dtype == torch.float64
    channels_last = S.stride(1) == 1 and S.shape[1] > 1
    few = S.shape[2] * S.shape[3] <= 64
    block_t, block_c = (
        (last_tokens, 32 if double else 64) if channels_last else (32 if double or few else 64, 16)
    )
    return {
        "DTYPE": tl.float64 if double else tl.float32,
        "BLOCK_T": block_t,
        "BLOCK_C": min(block_c, triton.next_power_of_2(S.shape[1])),
        "num_warps": 4,
    }


def _launch_grid(S: Tensor, block_t: int) -> tuple[int, int]:
    return S.shape[0], triton.cdiv(S.shape[2] * S.shape[3], block_t)


def forward(S: Tensor) -> tuple[Tensor, Tensor]:
    """The edges (B, 2, H, W) and the inverse norms (B, H, W)."""
    B, C, H, W = S.shape
    dtype = torch.float64 if S.dtype == torch.float64 else torch.float32
    edges, inverse_norm = S.new_empty(B, 2, H, W, dtype=dtype), S.new_empty(B, H, W, dtype=dtype)
    options = _launch_options(S, 16)
    with on_device_of(S):
        edge_similarity_forward_kernel[_launch_grid(S, options["BLOCK_T"])](
            S, edges, inverse_norm, *S.stride()[:2], *Layout.of_tokens(S), C, H, W, **options
        )
    return edges, inverse_norm


def backward(
    dedges: Tensor,
    S: Tensor,
    edges: Tensor,
    inverse_norm: Tensor,
    weight: Tensor | None = None,
    dpooled: Tensor | None = None,
) -> Tensor:
    """dS, with the gradient of `pooling` added where `weight` and `dpooled` are given."""
    return _backward(dedges, S, edges, inverse_norm, weight, dpooled, None, None, None)


def backward_with_sums(
    dedges: Tensor,
    S: Tensor,
    edges: Tensor,
    inverse_norm: Tensor,
    weight: Tensor | None,
    dpooled: Tensor | None,
    dparameters: Tensor,
    lam: Tensor,
    beta: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """dS, and every image's `dparameters` (B, 2, L) summed over the batch, in lam's and beta's dtype.

    The sums ride along because they would be a launch of their own.
    """
    dlam, dbeta = torch.empty_like(lam), torch.empty_like(beta)
    dS = _backward(dedges, S, edges, inverse_norm, weight, dpooled, dparameters, dlam, dbeta)
    return dS, dlam, dbeta


def _backward(
    dedges: Tensor,
    S: Tensor,
    edges: Tensor,
    inverse_norm: Tensor,
    weight: Tensor | None,
    dpooled: Tensor | None,
    dparameters: Tensor | None,
    dlam: Tensor | None,
    dbeta: Tensor | None,
) -> Tensor:
    B, C, H, W = S.shape
    dS = torch.empty_like(S)
    options = _launch_options(S, 8)  # every token has a mask for each neighbour, in AMD's scalar registers
    with on_device_of(S):
        edge_similarity_backward_kernel[_launch_grid(S, options["BLOCK_T"])](
            S,
            edges.contiguous(),
            inverse_norm,
            dedges.contiguous(),
            weight,
            None if dpooled is None else dpooled.contiguous(),
            dS,
            dparameters,
            dlam,
            dbeta,
            *S.stride()[:2],
            *Layout.of_tokens(S),
            *dS.stride()[:2],
            *Layout.of_tokens(dS),
            B,
            C,
            H,
            W,
            0 if dparameters is None else dparameters.shape[2],
            **options,
        )
    return dS
