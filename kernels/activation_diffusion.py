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

import inspect
from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .fields import (
    BACKWARD_SLOTS,
    DEDGES,
    DF,
    DOUT,
    ENTERING,
    FORWARD_SLOTS,
    GAIN,
    NORMALISED,
    SUMS,
    apply,
    degree,
    divide_or_zero,
    exchange_with_neighbours,
    extent,
    has_beside,
    keep_field,
    kept_field,
    load_field,
    load_grid,
    load_strided_field,
    matrix,
    min_max,
    min_max_backward,
    near_value,
    neighbours,
    own_edges,
    product,
    read_recurrence,
    settle,
    store_field,
    sum_two,
    tanhshrink,
    tanhshrink_slope,
    write_recurrence,
)
from .launching import on_device_of, warp_size

# Scratch memory of a launch; larger batches go in several. p = 10 on 64 x 64 tokens takes 34 MB per image.
MAX_SCRATCH_BYTES = 256 << 20

# Where the compiler knows that a field begins at a multiple of 16 bytes, it gives a lane tokens side by side, and
# then several lanes that fetch their neighbours meet in a bank of shared memory.
_FIELDS = [
    "F",
    "edges",
    "attention",
    "gain",
    "f",
    "dattention",
    "dgain",
    "dF",
    "dedges",
    "recurrence",
    "kept",
]


def _jit(kernel):
    names = [name for name in _FIELDS if name in inspect.signature(kernel).parameters]
    return triton.jit(kernel, do_not_specialize_on_alignment=names)


@triton.jit
def _terms(packed_iterations, i_l):
    """K = 2^p of block i_l."""
    packed = tl.cast(packed_iterations, tl.int64)  # a small value arrives as 32 bits, which the shift exceeds
    return 1 << ((packed >> (4 * i_l)) & 15).to(tl.int32)


@triton.jit
def _recurrence_fields(terms, DETACH_INIT: tl.constexpr):
    """Count the fields that the way back needs: r_j of every step, and M r_j unless X_0 is a constant."""
    return (terms - 1) if DETACH_INIT else 2 * (terms - 1)


@triton.jit
def _recurrence(
    b_F,
    terms,
    p_recurrence,
    pitch,
    p_slots,
    M,
    N,
    W,
    KEEP: tl.constexpr,
    DETACH_INIT: tl.constexpr,
    RESIDENT: tl.constexpr,
    ROOT_ALPHA: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """X_p F = sum r_j for the F that enters the block; with KEEP, its fields are written for the way back.

    After r_j (and M r_j) come X_p F and F.
    """
    FIELDS: tl.constexpr = 1 if DETACH_INIT else 2  # of a step
    b_r = ROOT_ALPHA * apply(b_F, p_slots, 1, M, N, W, RESIDENT, BLOCK)
    b_sum = b_r
    for j in tl.range(1, terms, disable_licm=True):
        b_y = apply(b_r, p_slots, 0, M, N, W, RESIDENT, BLOCK)
        if KEEP:
            write_recurrence(p_recurrence, FIELDS * (j - 1), pitch, b_r, BLOCK)
            if not DETACH_INIT:
                write_recurrence(p_recurrence, FIELDS * (j - 1) + 1, pitch, b_y, BLOCK)
        b_r -= apply(b_y, p_slots, 1, M, N, W, RESIDENT, BLOCK)
        b_sum += b_r
    return b_sum


@triton.jit
def _accumulate(kept, b_x, p_slots, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    return keep_field(kept_field(kept, p_slots, RESIDENT, BLOCK) + b_x, p_slots, kept, RESIDENT, BLOCK)


@_jit
def activation_diffusion_forward_kernel(
    F,
    edges,  # [B, 2, H, W]
    lam,
    beta,
    attention,  # [B, H, W]
    gain,  # [B, H, W]
    f,  # [B, L, H, W]
    recurrence,  # [B, fields, pitch] or None: kept for the backward pass
    scratch,  # [B, slots, BLOCK] or None
    packed_iterations,
    stride_b,
    stride_h,
    stride_w,
    slots,
    fields,
    pitch,
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
    N = H * W
    m = tl.arange(0, BLOCK) < N
    p_slots = scratch
    if scratch is not None:
        p_slots += i_b * slots * BLOCK
    p_recurrence = recurrence
    if recurrence is not None:
        p_recurrence += i_b * fields * pitch
    grid = load_grid(p_slots, edges + i_b * 2 * N, H, W, DTYPE, RESIDENT, BLOCK)
    b_raw = load_strided_field(F + i_b * stride_b, stride_h, stride_w, m, W, DTYPE, BLOCK)
    entering = keep_field(min_max(b_raw, m) if NORMALISE else b_raw, p_slots, ENTERING, RESIDENT, BLOCK)
    total_gain = keep_field(tl.full([BLOCK], 1.0, DTYPE), p_slots, GAIN, RESIDENT, BLOCK)
    settle(RESIDENT)
    for i_l in tl.range(NUM_BLOCKS, disable_licm=True):
        lam_l, beta_l = tl.load(lam + i_l).to(DTYPE), tl.load(beta + i_l).to(DTYPE)
        terms = _terms(packed_iterations, i_l)
        M = matrix(grid, p_slots, lam_l, ROOT_ALPHA, N, W, RESIDENT, BLOCK)
        b_sum = _recurrence(
            kept_field(entering, p_slots, RESIDENT, BLOCK),
            terms,
            p_recurrence,
            pitch,
            p_slots,
            M,
            N,
            W,
            recurrence is not None,
            DETACH_INIT,
            RESIDENT,
            ROOT_ALPHA,
            BLOCK,
        )
        b_F = kept_field(entering, p_slots, RESIDENT, BLOCK)
        if recurrence is not None:
            last = _recurrence_fields(terms, DETACH_INIT)
            write_recurrence(p_recurrence, last, pitch, b_sum, BLOCK)
            write_recurrence(p_recurrence, last + 1, pitch, b_F, BLOCK)
            p_recurrence += (last + 2) * pitch
        _, peak = extent(b_F, m)
        b_t = tanhshrink(divide_or_zero(b_sum, beta_l * peak), LEVELS)
        b_f = min_max(b_t, m)
        store_field(f + (i_b * NUM_BLOCKS + i_l) * N, b_f, N, BLOCK)
        entering = _accumulate(entering, b_f, p_slots, RESIDENT, BLOCK)
        b_gain = kept_field(total_gain, p_slots, RESIDENT, BLOCK) * (1 + b_f)
        total_gain = keep_field(b_gain, p_slots, GAIN, RESIDENT, BLOCK)
        settle(RESIDENT)
    store_field(attention + i_b * N, kept_field(entering, p_slots, RESIDENT, BLOCK), N, BLOCK)
    store_field(gain + i_b * N, kept_field(total_gain, p_slots, RESIDENT, BLOCK), N, BLOCK)


@triton.jit
def _with_neighbours(p_recurrence, number, pitch, N, W, BLOCK: tl.constexpr):
    """Return what `_add_entries` needs of a field: itself and its right and lower neighbour."""
    return (
        read_recurrence(p_recurrence, number, pitch, 0, N, BLOCK),
        read_recurrence(p_recurrence, number, pitch, 1, N, BLOCK),
        read_recurrence(p_recurrence, number, pitch, W, N, BLOCK),
    )


@triton.jit
def _fetch(p_recurrence, number, pitch, N, W, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """A field with its neighbours, asked for early, so that the memory answers while products are computed.

    Where registers are scarce, the number alone: `_fetched` asks then.
    """
    if RESIDENT:
        return _with_neighbours(p_recurrence, number, pitch, N, W, BLOCK)
    else:
        return number


@triton.jit
def _fetched(x, p_recurrence, pitch, N, W, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    if RESIDENT:
        return x
    else:
        return _with_neighbours(p_recurrence, x, pitch, N, W, BLOCK)


@triton.jit
def _entering_with_neighbours(entering, p_slots, N, W, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """Do as `_with_neighbours`, for the F that enters a block."""
    if RESIDENT:
        b_right, _, b_down, _ = neighbours(entering, W, BLOCK)
        return entering, b_right, b_down
    else:
        return _with_neighbours(p_slots, ENTERING, BLOCK, N, W, BLOCK)


@triton.jit
def _add_entries(sums, b_dy, near, x, p_slots, N, W, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """Adds the gradient of M's (diagonal, right, down) entries from y = M x: dy_i x_i and dy_i x_j + dy_j x_i.

    `near` has the neighbours of dy; x comes with its own.
    """
    b_right = b_dy * x[1] + near_value(near, p_slots, 0, N, W, RESIDENT, BLOCK) * x[0]
    b_down = b_dy * x[2] + near_value(near, p_slots, 2, N, W, RESIDENT, BLOCK) * x[0]
    return (
        _accumulate(sums[0], b_dy * x[0], p_slots, RESIDENT, BLOCK),
        _accumulate(sums[1], b_right, p_slots, RESIDENT, BLOCK),
        _accumulate(sums[2], b_down, p_slots, RESIDENT, BLOCK),
    )


@_jit
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
    kept,  # [B, fields, pitch] or None: the recurrence as the forward pass kept it
    scratch,  # [B, slots, BLOCK] or None
    packed_iterations,
    stride_b,
    stride_h,
    stride_w,
    slots,
    fields,
    kept_pitch,
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
    p_slots = scratch
    if scratch is not None:
        p_slots += i_b * slots * BLOCK
    FIELDS: tl.constexpr = 1 if DETACH_INIT else 2  # of every step of the recurrence
    if kept is None:
        p_recurrence = p_slots + (0 if RESIDENT else BACKWARD_SLOTS) * BLOCK
        pitch = BLOCK
    else:
        p_recurrence = kept + (i_b + 1) * fields * kept_pitch
        pitch = kept_pitch

    b_raw = load_strided_field(F + i_b * stride_b, stride_h, stride_w, m, W, DTYPE, BLOCK)
    b_F = min_max(b_raw, m) if NORMALISE else b_raw
    normalised = keep_field(b_F, p_slots, NORMALISED, RESIDENT, BLOCK)
    grid = load_grid(p_slots, edges + i_b * 2 * N, H, W, DTYPE, RESIDENT, BLOCK)
    dedges_right = keep_field(b_zero, p_slots, DEDGES, RESIDENT, BLOCK)
    dedges_down = keep_field(b_zero, p_slots, DEDGES + 1, RESIDENT, BLOCK)
    b_dF = b_zero
    if dattention is not None:
        b_dF = load_field(dattention + i_b * N, N, BLOCK)
    dentering = keep_field(b_dF, p_slots, DF, RESIDENT, BLOCK)
    b_dgain = b_zero
    if dgain is not None:
        b_dgain = load_field(dgain + i_b * N, N, BLOCK)
    p_f = f + i_b * NUM_BLOCKS * N
    for i_l in range(NUM_BLOCKS):
        b_dgain *= 1 + load_field(p_f + i_l * N, N, BLOCK)
    dgain_gain = keep_field(b_dgain, p_slots, GAIN, RESIDENT, BLOCK)

    for step in tl.range(NUM_BLOCKS, disable_licm=True):
        i_l = NUM_BLOCKS - 1 - step
        lam_l, beta_l = tl.load(lam + i_l).to(DTYPE), tl.load(beta + i_l).to(DTYPE)
        terms = _terms(packed_iterations, i_l)
        last = _recurrence_fields(terms, DETACH_INIT)
        if kept is None:
            b_F = kept_field(normalised, p_slots, RESIDENT, BLOCK)
            for i in range(i_l):
                b_F += load_field(p_f + i * N, N, BLOCK)
        else:
            p_recurrence -= (last + 2) * pitch
            b_F = read_recurrence(p_recurrence, last + 1, pitch, 0, N, BLOCK)
        b_f = load_field(p_f + i_l * N, N, BLOCK)
        entering = keep_field(b_F, p_slots, ENTERING, RESIDENT, BLOCK)
        settle(RESIDENT)
        M = matrix(grid, p_slots, lam_l, ROOT_ALPHA, N, W, RESIDENT, BLOCK)
        settle(RESIDENT)
        if kept is None:
            b_sum = _recurrence(
                b_F,
                terms,
                p_recurrence,
                pitch,
                p_slots,
                M,
                N,
                W,
                True,
                DETACH_INIT,
                RESIDENT,
                ROOT_ALPHA,
                BLOCK,
            )
            tl.debug_barrier()  # the recurrence is read back, tokens beside a thread's own as well
        else:
            b_sum = read_recurrence(p_recurrence, last, pitch, 0, N, BLOCK)
            next_r = _fetch(p_recurrence, tl.maximum(last - FIELDS, 0), pitch, N, W, RESIDENT, BLOCK)
            next_Mr = _fetch(p_recurrence, tl.maximum(last - 1, 0), pitch, N, W, RESIDENT, BLOCK)

        # The filter. gain = prod (1 + f_l), so df_l takes dgain * gain / (1 + f_l).
        _, peak = extent(b_F, m)
        threshold = beta_l * peak
        b_z = divide_or_zero(b_sum, threshold)
        b_t = tanhshrink(b_z, LEVELS)
        b_dF = kept_field(dentering, p_slots, RESIDENT, BLOCK)
        b_df = b_dF + kept_field(dgain_gain, p_slots, RESIDENT, BLOCK) / (1 + b_f)
        b_dz = min_max_backward(b_df, b_t, b_f, m) * tanhshrink_slope(b_z, b_t)
        b_peak = (m & (kept_field(entering, p_slots, RESIDENT, BLOCK) == peak)).to(DTYPE)
        total, peaks = sum_two(b_dz * b_z, b_peak)
        dthreshold = -divide_or_zero(total, threshold)
        tl.store(dparameters + (i_b * 2 + 1) * NUM_BLOCKS + i_l, dthreshold * peak)
        b_share = b_peak * (dthreshold * beta_l / tl.maximum(peaks, 1.0))
        dentering = _accumulate(dentering, b_share, p_slots, RESIDENT, BLOCK)

        # The recurrence walked back: see `scm_fast.ops.diffusion_stencil.StencilDiffusion.backward`.
        b_dr = divide_or_zero(b_dz, threshold)
        dout = keep_field(b_dr, p_slots, DOUT, RESIDENT, BLOCK)
        sums = (
            keep_field(b_zero, p_slots, SUMS, RESIDENT, BLOCK),
            keep_field(b_zero, p_slots, SUMS + 1, RESIDENT, BLOCK),
            keep_field(b_zero, p_slots, SUMS + 2, RESIDENT, BLOCK),
        )
        for step_back in tl.range(1, terms, disable_licm=True):
            number = FIELDS * (terms - 1 - step_back)
            if kept is None:  # written a moment ago, and near
                r = _fetch(p_recurrence, number, pitch, N, W, RESIDENT, BLOCK)
                Mr = _fetch(p_recurrence, number + FIELDS - 1, pitch, N, W, RESIDENT, BLOCK)
            else:  # a step ahead, the last time in vain
                r, Mr = next_r, next_Mr
                number = tl.maximum(number - FIELDS, 0)
                next_r = _fetch(p_recurrence, number, pitch, N, W, RESIDENT, BLOCK)
                next_Mr = _fetch(p_recurrence, number + FIELDS - 1, pitch, N, W, RESIDENT, BLOCK)
            near = exchange_with_neighbours(b_dr, p_slots, 0, W, RESIDENT, BLOCK)
            if not DETACH_INIT:
                x = _fetched(Mr, p_recurrence, pitch, N, W, RESIDENT, BLOCK)
                sums = _add_entries(sums, b_dr, near, x, p_slots, N, W, RESIDENT, BLOCK)
            b_Mdr = product(b_dr, near, M, p_slots, N, W, RESIDENT, BLOCK)
            near = exchange_with_neighbours(b_Mdr, p_slots, 1, W, RESIDENT, BLOCK)
            x = _fetched(r, p_recurrence, pitch, N, W, RESIDENT, BLOCK)
            sums = _add_entries(sums, b_Mdr, near, x, p_slots, N, W, RESIDENT, BLOCK)
            b_dr += kept_field(dout, p_slots, RESIDENT, BLOCK) - product(
                b_Mdr, near, M, p_slots, N, W, RESIDENT, BLOCK
            )
        settle(RESIDENT)
        b_dr *= -ROOT_ALPHA  # r_0 = sqrt(alpha) M F is a step from zero with y = -sqrt(alpha) F
        near = exchange_with_neighbours(b_dr, p_slots, 0, W, RESIDENT, BLOCK)
        if not DETACH_INIT:
            x = _entering_with_neighbours(entering, p_slots, N, W, RESIDENT, BLOCK)
            sums = _add_entries(sums, b_dr, near, x, p_slots, N, W, RESIDENT, BLOCK)
        b_MdF = product(b_dr, near, M, p_slots, N, W, RESIDENT, BLOCK)
        dentering = _accumulate(dentering, -b_MdF, p_slots, RESIDENT, BLOCK)
        settle(RESIDENT)

        # The sums are -dM, and M = scale L with L_ii = degree_i (lam - 1); L_ij = 1 - lam E_ij on an edge.
        b_has_right, _ = has_beside(grid, p_slots, N, RESIDENT, BLOCK)
        b_right = b_has_right * (ROOT_ALPHA * kept_field(sums[1], p_slots, RESIDENT, BLOCK))
        b_down = tl.where(o < N - W, ROOT_ALPHA * kept_field(sums[2], p_slots, RESIDENT, BLOCK), 0.0)
        b_degree = degree(grid, p_slots, N, W, RESIDENT, BLOCK)
        b_dlam = -ROOT_ALPHA * b_degree * kept_field(sums[0], p_slots, RESIDENT, BLOCK)
        b_dlam += b_right * own_edges(grid, p_slots, 0, RESIDENT, BLOCK)
        b_dlam += b_down * own_edges(grid, p_slots, 1, RESIDENT, BLOCK)
        dedges_right = _accumulate(dedges_right, lam_l * b_right, p_slots, RESIDENT, BLOCK)
        dedges_down = _accumulate(dedges_down, lam_l * b_down, p_slots, RESIDENT, BLOCK)
        tl.store(dparameters + i_b * 2 * NUM_BLOCKS + i_l, tl.sum(b_dlam, 0))

    settle(RESIDENT)
    store_field(dedges + i_b * 2 * N, kept_field(dedges_right, p_slots, RESIDENT, BLOCK), N, BLOCK)
    store_field(dedges + i_b * 2 * N + N, kept_field(dedges_down, p_slots, RESIDENT, BLOCK), N, BLOCK)
    b_dF = kept_field(dentering, p_slots, RESIDENT, BLOCK)
    if NORMALISE:
        b_F = kept_field(normalised, p_slots, RESIDENT, BLOCK)
        b_raw = load_strided_field(F + i_b * stride_b, stride_h, stride_w, m, W, DTYPE, BLOCK)
        b_dF = min_max_backward(b_dF, b_raw, b_F, m)
    store_field(dF + i_b * N, b_dF, N, BLOCK)


def _launch_options(edges: Tensor) -> dict:
    """Lanes and warps for the grid of edges (B, 2, H, W); large grids keep in memory what fits no registers.

    One token per lane is the shortest path up to 8 warps, which wait for each other at barriers. Then a lane takes
    several tokens: four of 28 x 28 in 8 warps are quicker than one in 32, of which each barrier waits for all.
    float64 takes twice the registers. Where fields are in memory, a lane takes as few tokens as can be. With warps
    of 64 lanes every mask takes two scalar registers for each token of a lane, and so they are few from the start.
    """
    double = edges.dtype == torch.float64
    block = max(16, triton.next_power_of_2(edges[0, 0].numel()))
    lanes = warp_size(edges)
    resident = block <= (512 if double else 1024)
    most_lanes = 1024
    if lanes == 32:
        most_lanes = 256 if resident else 512 if double else 1024
    warps = max(1, min(block, most_lanes) // lanes)
    options = {
        "DTYPE": tl.float64 if double else tl.float32,
        "LEVELS": 9 if double else 5,
        "RESIDENT": resident,
        "BLOCK": block,
        "num_warps": warps,
    }
    if not torch.version.hip:
        # All that the threads can have: by itself ptxas would spill some, to make room for more programs.
        options["maxnreg"] = min(255, 65_536 // (warps * lanes))
    return options


def _pack(iterations: Sequence[int]) -> int:
    """The iteration count of every block, 4 bits each, in one 64-bit integer."""
    return sum(count << (4 * block) for block, count in enumerate(iterations))


def _scratch_pieces(edges: Tensor, slots: int, block: int) -> Iterator[tuple[slice, Tensor | None]]:
    """Slices of the batch, and scratch memory for each: one launch unless that would exceed MAX_SCRATCH_BYTES."""
    B = edges.shape[0]
    if slots == 0:
        yield slice(0, B), None
        return
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
    detach_init: bool = False,
    recurrence: Tensor | None = None,
    normalise: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """attention and gain (B, H, W) and f (B, L, H, W). F is raw, or with `normalise` off as a block left it.

    recurrence: [B, fields, pitch], which is filled for `backward`.
    """
    B, H, W = F.shape
    options = _launch_options(edges)
    edges, lam, beta = edges.contiguous(), lam.contiguous(), beta.contiguous()
    attention, gain = edges.new_empty(B, H, W), edges.new_empty(B, H, W)
    f = edges.new_empty(B, len(iterations), H, W)
    slots = 0 if options["RESIDENT"] else FORWARD_SLOTS
    for images, scratch in _scratch_pieces(edges, slots, options["BLOCK"]):
        with on_device_of(edges):
            activation_diffusion_forward_kernel[(len(F[images]),)](
                F[images],
                edges[images],
                lam,
                beta,
                attention[images],
                gain[images],
                f[images],
                None if recurrence is None else recurrence[images],
                scratch,
                _pack(iterations),
                *F.stride(),
                slots,
                *((0, 0) if recurrence is None else recurrence.shape[1:]),
                H,
                W,
                len(iterations),
                ROOT_ALPHA=alpha**0.5,
                NORMALISE=normalise,
                DETACH_INIT=detach_init,
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
    recurrence: Tensor | None = None,
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
    slots = 0 if options["RESIDENT"] else BACKWARD_SLOTS.value
    if recurrence is None:
        slots += max(1, (1 if detach_init else 2) * (2 ** max(iterations) - 1))
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
                None if recurrence is None else recurrence[images],
                scratch,
                _pack(iterations),
                *F.stride(),
                slots,
                *((0, 0) if recurrence is None else recurrence.shape[1:]),
                H,
                W,
                len(iterations),
                ROOT_ALPHA=alpha**0.5,
                NORMALISE=normalise,
                DETACH_INIT=detach_init,
                **options,
            )
    return dF, dedges, dparameters
