"""The stack of diffusion blocks on scalar fields, one program per image; see `scm_fast.ops.activation_diffusion`.

    M = sqrt(alpha) L:   (M x)_i = diagonal_i x_i + right_i x_{i+1} + left_i x_{i-1} + down_i x_{i+W} + up_i x_{i-W}
    X_p F = sum_{j < K} r_j,   r_0 = sqrt(alpha) M F,   r_j = r_{j-1} - M M r_{j-1},   K = 2^p
    f = minmax(tanhshrink(X_p F / (beta max F))),   F <- F + f,   gain <- gain (1 + f)

A field lives in the registers of the program, one lane per token. The critical path is a chain of products M x, and
its time that of barriers: all four neighbours come from one gather, and several values are reduced together. What
a block does not touch in its inner loop (F, gain, gradients of the edges) waits in global memory. What a program
reads back there may have been written by another of its threads, so a barrier stands between.
Names: i_ program index, o_ offsets, m_ mask, p_ pointer, b_ field in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .fields import (
    DEDGES,
    DF,
    DOUT,
    EDGES,
    ENTERING,
    FILTERED,
    FORWARD_SLOTS,
    GAIN,
    HAS_RIGHT,
    NORMALISED,
    RAW,
    SUMS,
    apply,
    degree,
    divide_or_zero,
    exchange_with_neighbours,
    extent,
    keep_field,
    kept_field,
    load_field,
    load_strided_field,
    matrix,
    min_max,
    min_max_backward,
    near_value,
    product,
    read,
    read_near,
    store_field,
    sum_two,
    tanhshrink,
    tanhshrink_slope,
    write,
    write_grid,
)
from .launching import on_device_of, warp_size

# Scratch memory of a launch; larger batches go in several. p = 10 on 64 x 64 tokens takes 34 MB per image.
MAX_SCRATCH_BYTES = 256 << 20


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
    write_grid(p_slots, edges + i_b * 2 * N, H, W, DTYPE, BLOCK)
    b_raw = load_strided_field(F + i_b * stride_b, stride_h, stride_w, m, W, DTYPE, BLOCK)
    write(p_slots, ENTERING, min_max(b_raw, m) if NORMALISE else b_raw, BLOCK)
    write(p_slots, GAIN, tl.full([BLOCK], 1.0, DTYPE), BLOCK)
    tl.debug_barrier()  # here and below: a slot is read after all threads of the program have written it
    for i_l in tl.range(NUM_BLOCKS, disable_licm=True):
        lam_l, beta_l = tl.load(lam + i_l).to(DTYPE), tl.load(beta + i_l).to(DTYPE)
        M = matrix(p_slots, lam_l, ROOT_ALPHA, N, W, RESIDENT, BLOCK)
        b_r = ROOT_ALPHA * apply(read(p_slots, ENTERING, BLOCK), p_slots, 1, M, N, W, RESIDENT, BLOCK)
        b_sum = b_r
        for _ in tl.range(1, _terms(packed_iterations, i_l), disable_licm=True):
            b_y = apply(b_r, p_slots, 0, M, N, W, RESIDENT, BLOCK)
            b_r -= apply(b_y, p_slots, 1, M, N, W, RESIDENT, BLOCK)
            b_sum += b_r
        b_F = read(p_slots, ENTERING, BLOCK)
        _, peak = extent(b_F, m)
        b_t = tanhshrink(divide_or_zero(b_sum, beta_l * peak), LEVELS)
        b_f = min_max(b_t, m)
        store_field(f + (i_b * NUM_BLOCKS + i_l) * N, b_f, N, BLOCK)
        write(p_slots, ENTERING, read(p_slots, ENTERING, BLOCK) + b_f, BLOCK)
        write(p_slots, GAIN, read(p_slots, GAIN, BLOCK) * (1 + b_f), BLOCK)
        tl.debug_barrier()
    store_field(attention + i_b * N, read(p_slots, ENTERING, BLOCK), N, BLOCK)
    store_field(gain + i_b * N, read(p_slots, GAIN, BLOCK), N, BLOCK)


@triton.jit
def _accumulate(kept, b_x, p_slots, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    return keep_field(kept_field(kept, p_slots, RESIDENT, BLOCK) + b_x, p_slots, kept, RESIDENT, BLOCK)


@triton.jit
def _fetch(p_slots, slot, N, W, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """Return what `_add_entries` needs of a field in a slot: itself and its right and lower neighbour.

    Asked for early, so that the memory answers while a product is computed; late where registers are scarce.
    """
    if RESIDENT:
        return (
            read(p_slots, slot, BLOCK),
            read_near(p_slots, slot, 1, N, BLOCK),
            read_near(p_slots, slot, W, N, BLOCK),
        )
    else:
        return slot


@triton.jit
def _add_entries(sums, b_dy, near, fetched, p_slots, N, W, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """Adds the gradient of M's (diagonal, right, down) entries from y = M x: dy_i x_i and dy_i x_j + dy_j x_i.

    `near` has the neighbours of dy, and x is what `_fetch` fetched.
    """
    x = fetched if RESIDENT else _fetch(p_slots, fetched, N, W, True, BLOCK)
    b_right = b_dy * x[1] + near_value(near, p_slots, 0, N, W, RESIDENT, BLOCK) * x[0]
    b_down = b_dy * x[2] + near_value(near, p_slots, 2, N, W, RESIDENT, BLOCK) * x[0]
    return (
        _accumulate(sums[0], b_dy * x[0], p_slots, RESIDENT, BLOCK),
        _accumulate(sums[1], b_right, p_slots, RESIDENT, BLOCK),
        _accumulate(sums[2], b_down, p_slots, RESIDENT, BLOCK),
    )


@triton.jit
def _add_to_edges(p_slots, edge, b_minus_dL, lam, BLOCK: tl.constexpr):
    """Add -dL on the edges, L_ij = 1 - lam E_ij, to dE_ij, and return what lam receives, edge by edge."""
    write(p_slots, DEDGES + edge, read(p_slots, DEDGES + edge, BLOCK) + lam * b_minus_dL, BLOCK)
    return b_minus_dL * read(p_slots, EDGES + edge, BLOCK)


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
    scratch,  # [B, slots, BLOCK], slots = FILTERED + L + KEPT (K - 1)
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
    KEPT: tl.constexpr = 1 if DETACH_INIT else 2  # of every step: r_j, and M r_j unless nobody needs it

    b_raw = load_strided_field(F + i_b * stride_b, stride_h, stride_w, m, W, DTYPE, BLOCK)
    write(p_slots, RAW, b_raw, BLOCK)
    write(p_slots, NORMALISED, min_max(b_raw, m) if NORMALISE else b_raw, BLOCK)
    write_grid(p_slots, edges + i_b * 2 * N, H, W, DTYPE, BLOCK)
    write(p_slots, DEDGES, b_zero, BLOCK)
    write(p_slots, DEDGES + 1, b_zero, BLOCK)
    if dattention is None:
        write(p_slots, DF, b_zero, BLOCK)
    else:
        write(p_slots, DF, load_field(dattention + i_b * N, N, BLOCK), BLOCK)
    b_dgain = b_zero
    if dgain is not None:
        b_dgain = load_field(dgain + i_b * N, N, BLOCK)
    for i_l in range(NUM_BLOCKS):
        b_f = load_field(f + (i_b * NUM_BLOCKS + i_l) * N, N, BLOCK)
        b_dgain *= 1 + b_f
        write(p_slots, FILTERED + i_l, b_f, BLOCK)
    write(p_slots, GAIN, b_dgain, BLOCK)

    tl.debug_barrier()

    for step in tl.range(NUM_BLOCKS, disable_licm=True):
        i_l = NUM_BLOCKS - 1 - step
        lam_l, beta_l = tl.load(lam + i_l).to(DTYPE), tl.load(beta + i_l).to(DTYPE)
        terms = _terms(packed_iterations, i_l)
        b_F = read(p_slots, NORMALISED, BLOCK)
        for i in range(i_l):
            b_F += read(p_slots, FILTERED + i, BLOCK)
        write(p_slots, ENTERING, b_F, BLOCK)
        tl.debug_barrier()
        M = matrix(p_slots, lam_l, ROOT_ALPHA, N, W, RESIDENT, BLOCK)
        tl.debug_barrier()

        # The recurrence again; its fields stay in memory for the way back.
        b_r = ROOT_ALPHA * apply(read(p_slots, ENTERING, BLOCK), p_slots, 1, M, N, W, RESIDENT, BLOCK)
        b_sum = b_r
        for j in range(1, terms):
            write(p_slots, recurrence + KEPT * (j - 1), b_r, BLOCK)
            b_y = apply(b_r, p_slots, 0, M, N, W, RESIDENT, BLOCK)
            if not DETACH_INIT:
                write(p_slots, recurrence + KEPT * (j - 1) + 1, b_y, BLOCK)
            b_r -= apply(b_y, p_slots, 1, M, N, W, RESIDENT, BLOCK)
            b_sum += b_r
        tl.debug_barrier()

        # The filter. gain = prod (1 + f_l), so df_l takes dgain * gain / (1 + f_l).
        _, peak = extent(read(p_slots, ENTERING, BLOCK), m)
        threshold = beta_l * peak
        b_z = divide_or_zero(b_sum, threshold)
        b_t = tanhshrink(b_z, LEVELS)
        tl.debug_barrier()
        b_f = read(p_slots, FILTERED + i_l, BLOCK)
        b_df = read(p_slots, DF, BLOCK) + read(p_slots, GAIN, BLOCK) / (1 + b_f)
        b_dz = min_max_backward(b_df, b_t, b_f, m) * tanhshrink_slope(b_z, b_t)
        b_peak = (m & (read(p_slots, ENTERING, BLOCK) == peak)).to(DTYPE)
        total, peaks = sum_two(b_dz * b_z, b_peak)
        dthreshold = -divide_or_zero(total, threshold)
        tl.store(dparameters + (i_b * 2 + 1) * NUM_BLOCKS + i_l, dthreshold * peak)
        b_share = b_peak * (dthreshold * beta_l / tl.maximum(peaks, 1.0))
        write(p_slots, DF, read(p_slots, DF, BLOCK) + b_share, BLOCK)

        # The recurrence walked back: see `scm_fast.ops.diffusion_stencil.StencilDiffusion.backward`.
        b_dr = divide_or_zero(b_dz, threshold)
        dout = keep_field(b_dr, p_slots, DOUT, RESIDENT, BLOCK)
        sums = (
            keep_field(b_zero, p_slots, SUMS, RESIDENT, BLOCK),
            keep_field(b_zero, p_slots, SUMS + 1, RESIDENT, BLOCK),
            keep_field(b_zero, p_slots, SUMS + 2, RESIDENT, BLOCK),
        )
        for step_back in tl.range(1, terms, disable_licm=True):
            kept = recurrence + KEPT * (terms - 1 - step_back)
            r = _fetch(p_slots, kept, N, W, RESIDENT, BLOCK)
            Mr = _fetch(p_slots, kept + KEPT - 1, N, W, RESIDENT, BLOCK)
            near = exchange_with_neighbours(b_dr, p_slots, 0, W, RESIDENT, BLOCK)
            if not DETACH_INIT:
                sums = _add_entries(sums, b_dr, near, Mr, p_slots, N, W, RESIDENT, BLOCK)
            b_Mdr = product(b_dr, near, M, p_slots, N, W, RESIDENT, BLOCK)
            near = exchange_with_neighbours(b_Mdr, p_slots, 1, W, RESIDENT, BLOCK)
            sums = _add_entries(sums, b_Mdr, near, r, p_slots, N, W, RESIDENT, BLOCK)
            b_dr += kept_field(dout, p_slots, RESIDENT, BLOCK) - product(
                b_Mdr, near, M, p_slots, N, W, RESIDENT, BLOCK
            )
        tl.debug_barrier()
        b_dr *= -ROOT_ALPHA  # r_0 = sqrt(alpha) M F is a step from zero with y = -sqrt(alpha) F
        near = exchange_with_neighbours(b_dr, p_slots, 0, W, RESIDENT, BLOCK)
        if not DETACH_INIT:
            F_near = _fetch(p_slots, ENTERING, N, W, RESIDENT, BLOCK)
            sums = _add_entries(sums, b_dr, near, F_near, p_slots, N, W, RESIDENT, BLOCK)
        b_dF = read(p_slots, DF, BLOCK) - product(b_dr, near, M, p_slots, N, W, RESIDENT, BLOCK)
        write(p_slots, DF, b_dF, BLOCK)
        tl.debug_barrier()

        # The sums are -dM, and M = scale L with L_ii = degree_i (lam - 1).
        b_right = read(p_slots, HAS_RIGHT, BLOCK) * (
            ROOT_ALPHA * kept_field(sums[1], p_slots, RESIDENT, BLOCK)
        )
        b_down = tl.where(o < N - W, ROOT_ALPHA * kept_field(sums[2], p_slots, RESIDENT, BLOCK), 0.0)
        b_dlam = -ROOT_ALPHA * degree(p_slots, N, W, BLOCK) * kept_field(sums[0], p_slots, RESIDENT, BLOCK)
        b_dlam += _add_to_edges(p_slots, 0, b_right, lam_l, BLOCK)
        b_dlam += _add_to_edges(p_slots, 1, b_down, lam_l, BLOCK)
        tl.store(dparameters + i_b * 2 * NUM_BLOCKS + i_l, tl.sum(b_dlam, 0))

    tl.debug_barrier()
    store_field(dedges + i_b * 2 * N, read(p_slots, DEDGES, BLOCK), N, BLOCK)
    store_field(dedges + i_b * 2 * N + N, read(p_slots, DEDGES + 1, BLOCK), N, BLOCK)
    b_dF = read(p_slots, DF, BLOCK)
    if NORMALISE:
        b_F = read(p_slots, NORMALISED, BLOCK)
        b_dF = min_max_backward(b_dF, read(p_slots, RAW, BLOCK), b_F, m)
    store_field(dF + i_b * N, b_dF, N, BLOCK)


def _launch_options(edges: Tensor) -> dict:
    """Lanes and warps for the grid of edges (B, 2, H, W); large grids keep in memory what fits no registers.

    One token per lane is the shortest path up to 8 warps, which wait for each other at barriers. Then a lane takes
    several tokens, and beyond 1,024 tokens as few as can be: registers would not hold them. With warps of 64 lanes
    every mask takes two scalar registers for each token of a lane, and so they are few from the start.
    """
    double = edges.dtype == torch.float64
    block = max(16, triton.next_power_of_2(edges[0, 0].numel()))
    lanes = warp_size(edges)
    most_lanes = 256 if block <= 1024 and lanes == 32 else 1024
    return {
        "DTYPE": tl.float64 if double else tl.float32,
        "LEVELS": 9 if double else 5,
        "RESIDENT": block <= 1024,
        "BLOCK": block,
        "num_warps": max(1, min(block, most_lanes) // lanes),
    }


def _pack(iterations: Sequence[int]) -> int:
    """The iteration count of every block, 4 bits each, in one 64-bit integer."""
    return sum(count << (4 * block) for block, count in enumerate(iterations))


def _scratch_pieces(edges: Tensor, slots: int, block: int) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the batch, and scratch memory for each: one launch unless that would exceed MAX_SCRATCH_BYTES."""
    B = edges.shape[0]
    step = min(B, max(1, MAX_SCRATCH_BYTES // (slots * block * edges.element_size())))
    scratch = edges.new_empty(step, slots, block)
    for start in range(0, B, step):
        yield slice(start, start + step), scratch


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
    options = _launch_options(edges)
    edges, lam, beta = edges.contiguous(), lam.contiguous(), beta.contiguous()
    attention, gain = edges.new_empty(B, H, W), edges.new_empty(B, H, W)
    f = edges.new_empty(B, len(iterations), H, W)
    for images, scratch in _scratch_pieces(edges, FORWARD_SLOTS, options["BLOCK"]):
        with on_device_of(edges):
            activation_diffusion_forward_kernel[(len(F[images]),)](
                F[images],
                edges[images],
                lam,
                beta,
                attention[images],
                gain[images],
                f[images],
                scratch,
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
    options = _launch_options(edges)
    edges, lam, beta = edges.contiguous(), lam.contiguous(), beta.contiguous()
    dattention = None if dattention is None else dattention.contiguous()
    dgain = None if dgain is None else dgain.contiguous()
    dF, dedges = F.new_empty(B, H, W), edges.new_empty(edges.shape)
    dparameters = edges.new_empty(B, 2, len(iterations))
    kept = 1 if detach_init else 2
    slots = FILTERED.value + len(iterations) + kept * (2 ** max(iterations) - 1)
    for images, scratch in _scratch_pieces(edges, slots, options["BLOCK"]):
        with on_device_of(edges):
            activation_diffusion_backward_kernel[(len(F[images]),)](
                F[images],
                edges[images],
                lam,
                beta,
                f[images],
                None if dattention is None else dattention[images],
                None if dgain is None else dgain[images],
                dF[images],
                dedges[images],
                dparameters[images],
                scratch,
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
