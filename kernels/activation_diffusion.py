"""The stack of diffusion blocks on scalar fields, one program per image; see `scm_fast.ops.activation_diffusion`.

    M = sqrt(alpha) L:   (M x)_i = diagonal_i x_i + right_i x_{i+1} + left_i x_{i-1} + down_i x_{i+W} + up_i x_{i-W}
    X_p F = sum_{j < K} r_j,   r_0 = sqrt(alpha) M F,   r_j = r_{j-1} - M M r_{j-1},   K = 2^p
    f = minmax(tanhshrink(X_p F / (beta max F))),   F <- F + f,   gain <- gain (1 + f)

A field lives in the registers of the program, one lane per token; a neighbour is a `tl.gather`. What a block does
not touch in its inner loop (F, gain, gradients of the edges) waits in global memory. What a program reads back
there may have been written by another of its threads, so a barrier stands between.
Names: i_ program index, o_ offsets, m_ mask, p_ pointer, b_ field in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .fields import (
    above,
    below,
    divide_or_zero,
    extent,
    left_of,
    load_field,
    load_strided_field,
    min_max,
    min_max_backward,
    right_of,
    share_gradient,
    store_field,
    tanhshrink,
    tanhshrink_slope,
)

# What a program keeps of its image in scratch memory, a slot of BLOCK lanes each. One base address serves all of
# them, so that addresses take no registers of their own. MATRIX, DOUT and SUMS are used unless RESIDENT.
MATRIX, ENTERING, HAS_RIGHT, EDGES, GAIN = (tl.constexpr(slot) for slot in (0, 5, 6, 7, 9))
FORWARD_SLOTS = 10
NORMALISED, DEDGES, DF, RAW, DOUT, SUMS = (tl.constexpr(slot) for slot in (10, 11, 13, 14, 15, 16))
FILTERED = tl.constexpr(19)  # f_0 ... f_{L-1}, and after them r_0 ... r_{K-2}


@triton.jit
def _read(p_slots, slot, BLOCK: tl.constexpr):
    return tl.load(p_slots + slot * BLOCK + tl.arange(0, BLOCK))


@triton.jit
def _write(p_slots, slot, b_x, BLOCK: tl.constexpr):
    tl.store(p_slots + slot * BLOCK + tl.arange(0, BLOCK), b_x)


@triton.jit
def _keep(b_x, p_slot, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """A field to be used in a loop: as it is, or left in memory where registers are scarce."""
    if RESIDENT:
        return b_x
    else:
        tl.store(p_slot + tl.arange(0, BLOCK), b_x)
        return p_slot


@triton.jit
def _get(kept, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """The field that `_keep` kept."""
    if RESIDENT:
        return kept
    else:
        return tl.load(kept + tl.arange(0, BLOCK))


@triton.jit
def _apply(b_x, M, W, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """M x; M = (diagonal, right, left, down, up), each kept by `_keep`."""
    if not RESIDENT:
        tl.debug_barrier()  # or one load of M would serve several products, and stay in registers between
    b_y = _get(M[0], RESIDENT, BLOCK) * b_x
    b_y += _get(M[1], RESIDENT, BLOCK) * right_of(b_x, BLOCK)
    b_y += _get(M[2], RESIDENT, BLOCK) * left_of(b_x, BLOCK)
    b_y += _get(M[3], RESIDENT, BLOCK) * below(b_x, W, BLOCK)
    b_y += _get(M[4], RESIDENT, BLOCK) * above(b_x, W, BLOCK)
    return b_y


@triton.jit
def _has_right(H, W, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """1 for tokens with a right neighbour, else 0."""
    o = tl.arange(0, BLOCK)
    return ((o < H * W) & (o % W < W - 1)).to(DTYPE)


@triton.jit
def _degree(b_has_right, N, W, BLOCK: tl.constexpr):
    """How many neighbours each token has."""
    o = tl.arange(0, BLOCK)
    b_has_left = tl.where(o > 0, left_of(b_has_right, BLOCK), 0.0)
    return b_has_right + b_has_left + tl.where(o < N - W, 1.0, 0.0) + tl.where((o < N) & (o >= W), 1.0, 0.0)


@triton.jit
def _write_grid(p_slots, p_edges, H, W, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """Fill the slots that `_matrix` reads; p_edges points to the (2, H, W) edges of the image."""
    N = H * W
    _write(p_slots, HAS_RIGHT, _has_right(H, W, DTYPE, BLOCK), BLOCK)
    _write(p_slots, EDGES, load_field(p_edges, N, BLOCK), BLOCK)
    _write(p_slots, EDGES + 1, load_field(p_edges + N, N, BLOCK), BLOCK)


@triton.jit
def _matrix(p_slots, lam, scale: tl.constexpr, N, W, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """M = scale * L of one image, kept."""
    o = tl.arange(0, BLOCK)
    b_has_right = _read(p_slots, HAS_RIGHT, BLOCK)
    b_right = b_has_right * (scale * (1 - lam * _read(p_slots, EDGES, BLOCK)))
    b_down = tl.where(o < N - W, scale * (1 - lam * _read(p_slots, EDGES + 1, BLOCK)), 0.0)
    b_left = tl.where(o > 0, left_of(b_right, BLOCK), 0.0)
    b_up = tl.where(o >= W, above(b_down, W, BLOCK), 0.0)
    p_matrix = p_slots + MATRIX * BLOCK
    return (
        _keep(_degree(b_has_right, N, W, BLOCK) * (scale * (lam - 1)), p_matrix, RESIDENT, BLOCK),
        _keep(b_right, p_matrix + BLOCK, RESIDENT, BLOCK),
        _keep(b_left, p_matrix + 2 * BLOCK, RESIDENT, BLOCK),
        _keep(b_down, p_matrix + 3 * BLOCK, RESIDENT, BLOCK),
        _keep(b_up, p_matrix + 4 * BLOCK, RESIDENT, BLOCK),
    )


@triton.jit
def _terms(packed_iterations, i_l):
    """K = 2^p of block i_l."""
    packed = tl.cast(packed_iterations, tl.int64)  # a small value arrives as 32 bits, which the shift exceeds
    return 1 << ((packed >> (4 * i_l)) & 15).to(tl.int32)


@triton.jit
def activation_diffusion_forward_kernel(
    F,
    edges,  # [B, 2, H, W]
    lam,
    beta,
    attention,  # [B, H, W]
    gain,  # [B, H, W]
    f,  # [B, L, H, W]
    scratch,  # [B, slots, BLOCK]
    packed_iterations,
    stride_b,
    stride_h,
    stride_w,
    slots,
    H,
    W,
    NUM_BLOCKS,
    ROOT_ALPHA: tl.constexpr,
    NORMALISE: tl.constexpr,
    DTYPE: tl.constexpr,
    LEVELS: tl.constexpr,
    RESIDENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    N = H * W
    m = tl.arange(0, BLOCK) < N
    p_slots = scratch + i_b * slots * BLOCK
    _write_grid(p_slots, edges + i_b * 2 * N, H, W, DTYPE, BLOCK)
    b_raw = load_strided_field(F + i_b * stride_b, stride_h, stride_w, m, W, DTYPE, BLOCK)
    _write(p_slots, ENTERING, min_max(b_raw, m) if NORMALISE else b_raw, BLOCK)
    _write(p_slots, GAIN, tl.full([BLOCK], 1.0, DTYPE), BLOCK)
    tl.debug_barrier()  # here and below: a slot is read after all threads of the program have written it
    for i_l in tl.range(NUM_BLOCKS, disable_licm=True):
        lam_l, beta_l = tl.load(lam + i_l).to(DTYPE), tl.load(beta + i_l).to(DTYPE)
        M = _matrix(p_slots, lam_l, ROOT_ALPHA, N, W, RESIDENT, BLOCK)
        b_r = ROOT_ALPHA * _apply(_read(p_slots, ENTERING, BLOCK), M, W, RESIDENT, BLOCK)
        b_sum = b_r
        for _ in tl.range(1, _terms(packed_iterations, i_l), disable_licm=True):
            b_y = _apply(b_r, M, W, RESIDENT, BLOCK)
            b_r -= _apply(b_y, M, W, RESIDENT, BLOCK)
            b_sum += b_r
        b_F = _read(p_slots, ENTERING, BLOCK)
        _, peak = extent(b_F, m)
        b_t = tanhshrink(divide_or_zero(b_sum, beta_l * peak), LEVELS)
        b_f = min_max(b_t, m)
        store_field(f + (i_b * NUM_BLOCKS + i_l) * N, b_f, N, BLOCK)
        _write(p_slots, ENTERING, _read(p_slots, ENTERING, BLOCK) + b_f, BLOCK)
        _write(p_slots, GAIN, _read(p_slots, GAIN, BLOCK) * (1 + b_f), BLOCK)
        tl.debug_barrier()
    store_field(attention + i_b * N, _read(p_slots, ENTERING, BLOCK), N, BLOCK)
    store_field(gain + i_b * N, _read(p_slots, GAIN, BLOCK), N, BLOCK)


@triton.jit
def _accumulate(kept, b_x, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    return _keep(_get(kept, RESIDENT, BLOCK) + b_x, kept, RESIDENT, BLOCK)


@triton.jit
def _add_entries(sums, b_dy, b_x, W, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """The gradient of M's (diagonal, right, down) entries from y = M x: dy_i x_i and dy_i x_j + dy_j x_i."""
    return (
        _accumulate(sums[0], b_dy * b_x, RESIDENT, BLOCK),
        _accumulate(sums[1], b_dy * right_of(b_x, BLOCK) + right_of(b_dy, BLOCK) * b_x, RESIDENT, BLOCK),
        _accumulate(sums[2], b_dy * below(b_x, W, BLOCK) + below(b_dy, W, BLOCK) * b_x, RESIDENT, BLOCK),
    )


@triton.jit
def _add_edges(p_slots, edge, b_minus_dL, lam, BLOCK: tl.constexpr):
    """From -dL on the edges, L_ij = 1 - lam E_ij: adds to dE_ij and returns what lam receives."""
    _write(p_slots, DEDGES + edge, _read(p_slots, DEDGES + edge, BLOCK) + lam * b_minus_dL, BLOCK)
    return tl.sum(b_minus_dL * _read(p_slots, EDGES + edge, BLOCK), 0)


@triton.jit
def activation_diffusion_backward_kernel(
    F,
    edges,  # [B, 2, H, W]
    lam,
    beta,
    f,  # [B, L, H, W]
    dattention,  # [B, H, W] or None
    dgain,  # [B, H, W] or None
    dF,  # [B, H, W]
    dedges,  # [B, 2, H, W]
    dparameters,  # [B, 2, L]: this image's share of dlam and dbeta
    scratch,  # [B, slots, BLOCK], slots = FILTERED + L + K - 1
    packed_iterations,
    stride_b,
    stride_h,
    stride_w,
    slots,
    H,
    W,
    NUM_BLOCKS,
    ROOT_ALPHA: tl.constexpr,
    NORMALISE: tl.constexpr,
    DTYPE: tl.constexpr,
    DETACH_INIT: tl.constexpr,
    LEVELS: tl.constexpr,
    RESIDENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCK)
    N = H * W
    m = o < N
    b_zero = tl.zeros([BLOCK], DTYPE)
    p_slots = scratch + i_b * slots * BLOCK
    recurrence = FILTERED + NUM_BLOCKS

    b_raw = load_strided_field(F + i_b * stride_b, stride_h, stride_w, m, W, DTYPE, BLOCK)
    _write(p_slots, RAW, b_raw, BLOCK)
    _write(p_slots, NORMALISED, min_max(b_raw, m) if NORMALISE else b_raw, BLOCK)
    _write_grid(p_slots, edges + i_b * 2 * N, H, W, DTYPE, BLOCK)
    _write(p_slots, DEDGES, b_zero, BLOCK)
    _write(p_slots, DEDGES + 1, b_zero, BLOCK)
    if dattention is None:
        _write(p_slots, DF, b_zero, BLOCK)
    else:
        _write(p_slots, DF, load_field(dattention + i_b * N, N, BLOCK), BLOCK)
    b_dgain = b_zero
    if dgain is not None:
        b_dgain = load_field(dgain + i_b * N, N, BLOCK)
    for i_l in range(NUM_BLOCKS):
        b_f = load_field(f + (i_b * NUM_BLOCKS + i_l) * N, N, BLOCK)
        b_dgain *= 1 + b_f
        _write(p_slots, FILTERED + i_l, b_f, BLOCK)
    _write(p_slots, GAIN, b_dgain, BLOCK)

    tl.debug_barrier()

    for step in tl.range(NUM_BLOCKS, disable_licm=True):
        i_l = NUM_BLOCKS - 1 - step
        lam_l, beta_l = tl.load(lam + i_l).to(DTYPE), tl.load(beta + i_l).to(DTYPE)
        terms = _terms(packed_iterations, i_l)
        b_F = _read(p_slots, NORMALISED, BLOCK)
        for i in range(i_l):
            b_F += _read(p_slots, FILTERED + i, BLOCK)
        _write(p_slots, ENTERING, b_F, BLOCK)
        tl.debug_barrier()
        M = _matrix(p_slots, lam_l, ROOT_ALPHA, N, W, RESIDENT, BLOCK)
        tl.debug_barrier()

        # The recurrence again: r_j stays in memory for the way back.
        b_r = ROOT_ALPHA * _apply(_read(p_slots, ENTERING, BLOCK), M, W, RESIDENT, BLOCK)
        b_sum = b_r
        for j in range(1, terms):
            _write(p_slots, recurrence + j - 1, b_r, BLOCK)
            b_y = _apply(b_r, M, W, RESIDENT, BLOCK)
            b_r -= _apply(b_y, M, W, RESIDENT, BLOCK)
            b_sum += b_r
        tl.debug_barrier()

        # The filter. gain = prod (1 + f_l), so df_l takes dgain * gain / (1 + f_l).
        _, peak = extent(_read(p_slots, ENTERING, BLOCK), m)
        threshold = beta_l * peak
        b_z = divide_or_zero(b_sum, threshold)
        b_t = tanhshrink(b_z, LEVELS)
        tl.debug_barrier()
        b_f = _read(p_slots, FILTERED + i_l, BLOCK)
        b_df = _read(p_slots, DF, BLOCK) + _read(p_slots, GAIN, BLOCK) / (1 + b_f)
        b_dz = min_max_backward(b_df, b_t, b_f, m) * tanhshrink_slope(b_z, b_t)
        dthreshold = -divide_or_zero(tl.sum(b_dz * b_z, 0), threshold)
        tl.store(dparameters + (i_b * 2 + 1) * NUM_BLOCKS + i_l, dthreshold * peak)
        tl.debug_barrier()
        b_share = share_gradient(m & (_read(p_slots, ENTERING, BLOCK) == peak), dthreshold * beta_l)
        _write(p_slots, DF, _read(p_slots, DF, BLOCK) + b_share, BLOCK)

        # The recurrence walked back: see `scm_fast.ops.diffusion_stencil.StencilDiffusion.backward`.
        b_dr = divide_or_zero(b_dz, threshold)
        dout = _keep(b_dr, p_slots + DOUT * BLOCK, RESIDENT, BLOCK)
        sums = (
            _keep(b_zero, p_slots + SUMS * BLOCK, RESIDENT, BLOCK),
            _keep(b_zero, p_slots + (SUMS + 1) * BLOCK, RESIDENT, BLOCK),
            _keep(b_zero, p_slots + (SUMS + 2) * BLOCK, RESIDENT, BLOCK),
        )
        for step_back in tl.range(1, terms, disable_licm=True):
            tl.debug_barrier()
            b_r = _read(p_slots, recurrence + terms - 1 - step_back, BLOCK)
            if not DETACH_INIT:
                b_y = _apply(b_r, M, W, RESIDENT, BLOCK)
                sums = _add_entries(sums, b_dr, b_y, W, RESIDENT, BLOCK)
            b_Mdr = _apply(b_dr, M, W, RESIDENT, BLOCK)
            sums = _add_entries(sums, b_Mdr, b_r, W, RESIDENT, BLOCK)
            b_dr += _get(dout, RESIDENT, BLOCK) - _apply(b_Mdr, M, W, RESIDENT, BLOCK)
        tl.debug_barrier()
        if not DETACH_INIT:
            b_F = _read(p_slots, ENTERING, BLOCK)
            sums = _add_entries(sums, b_dr, -ROOT_ALPHA * b_F, W, RESIDENT, BLOCK)
        b_dF = _read(p_slots, DF, BLOCK) + ROOT_ALPHA * _apply(b_dr, M, W, RESIDENT, BLOCK)
        _write(p_slots, DF, b_dF, BLOCK)
        tl.debug_barrier()

        # The sums are -dM, and M = scale L with L_ii = degree_i (lam - 1).
        b_has_right = _read(p_slots, HAS_RIGHT, BLOCK)
        b_degree = _degree(b_has_right, N, W, BLOCK)
        dlam = -ROOT_ALPHA * tl.sum(b_degree * _get(sums[0], RESIDENT, BLOCK), 0)
        b_right = b_has_right * (ROOT_ALPHA * _get(sums[1], RESIDENT, BLOCK))
        dlam += _add_edges(p_slots, 0, b_right, lam_l, BLOCK)
        b_down = tl.where(o < N - W, ROOT_ALPHA * _get(sums[2], RESIDENT, BLOCK), 0.0)
        dlam += _add_edges(p_slots, 1, b_down, lam_l, BLOCK)
        tl.store(dparameters + i_b * 2 * NUM_BLOCKS + i_l, dlam)

    tl.debug_barrier()
    store_field(dedges + i_b * 2 * N, _read(p_slots, DEDGES, BLOCK), N, BLOCK)
    store_field(dedges + i_b * 2 * N + N, _read(p_slots, DEDGES + 1, BLOCK), N, BLOCK)
    b_dF = _read(p_slots, DF, BLOCK)
    if NORMALISE:
        b_F = _read(p_slots, NORMALISED, BLOCK)
        b_dF = min_max_backward(b_dF, _read(p_slots, RAW, BLOCK), b_F, m)
    store_field(dF + i_b * N, b_dF, N, BLOCK)


def _launch_options(grid: Sequence[int], dtype: torch.dtype) -> dict:
    """Lanes and warps for a grid; large grids keep in memory what small ones hold in registers."""
    max_warps = 16 if torch.version.hip else 32  # 1,024 threads
    lanes = 32 if dtype == torch.float64 else 64  # a warp, on small grids
    block = max(16, triton.next_power_of_2(grid[0] * grid[1]))
    return {
        "DTYPE": tl.float64 if dtype == torch.float64 else tl.float32,
        "LEVELS": 9 if dtype == torch.float64 else 5,
        "RESIDENT": block <= 1024,
        "BLOCK": block,
        "num_warps": max(1, block // lanes) if block <= 512 else min(max(block // 128, 8), max_warps),
    }


def _pack(iterations: Sequence[int]) -> int:
    """The iteration count of every block, 4 bits each, in one 64-bit integer."""
    return sum(count << (4 * block) for block, count in enumerate(iterations))


def forward(
    F: Tensor,
    edges: Tensor,
    lam: Tensor,
    beta: Tensor,
    iterations: Sequence[int],
    alpha: float,
    normalise: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """attention and gain (B, H, W) and f (B, L, H, W). F is raw, or with `normalise` off as a block left it."""
    B, H, W = F.shape
    options = _launch_options((H, W), edges.dtype)
    attention, gain = edges.new_empty(B, H, W), edges.new_empty(B, H, W)
    f = edges.new_empty(B, len(iterations), H, W)
    activation_diffusion_forward_kernel[(B,)](
        F,
        edges.contiguous(),
        lam.contiguous(),
        beta.contiguous(),
        attention,
        gain,
        f,
        edges.new_empty(B, FORWARD_SLOTS, options["BLOCK"]),
        _pack(iterations),
        *F.stride(),
        FORWARD_SLOTS,
        H,
        W,
        len(iterations),
        ROOT_ALPHA=alpha**0.5,
        NORMALISE=normalise,
        **options,
    )
    return attention, gain, f


def backward(
    F: Tensor,
    edges: Tensor,
    lam: Tensor,
    beta: Tensor,
    f: Tensor,
    dattention: Tensor | None,
    dgain: Tensor | None,
    iterations: Sequence[int],
    alpha: float,
    detach_init: bool,
    normalise: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """dF (B, H, W), dedges (B, 2, H, W), and every image's share of dlam and dbeta, (B, 2, L)."""
    B, H, W = F.shape
    options = _launch_options((H, W), edges.dtype)
    dF, dedges = F.new_empty(B, H, W), edges.new_empty(edges.shape)
    dparameters = edges.new_empty(B, 2, len(iterations))
    slots = FILTERED.value + len(iterations) + 2 ** max(iterations) - 1
    activation_diffusion_backward_kernel[(B,)](
        F,
        edges.contiguous(),
        lam.contiguous(),
        beta.contiguous(),
        f,
        None if dattention is None else dattention.contiguous(),
        None if dgain is None else dgain.contiguous(),
        dF,
        dedges,
        dparameters,
        edges.new_empty(B, slots, options["BLOCK"]),
        _pack(iterations),
        *F.stride(),
        slots,
        H,
        W,
        len(iterations),
        ROOT_ALPHA=alpha**0.5,
        NORMALISE=normalise,
        DETACH_INIT=detach_init,
        **options,
    )
    return dF, dedges, dparameters
