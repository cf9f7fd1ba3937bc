"""Arithmetic on a scalar field that lives in a program's registers, one lane per token.

Lanes beyond the N tokens hold 0; `m` marks the tokens. The counterpart in torch is `scm_fast.ops.diffusion_fields`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.target_info import is_hip


@triton.jit
def load_field(p_x, N, BLOCK: tl.constexpr):
    """A field of N tokens; 0 in the lanes beyond. Pointers stay scalar until here, to spare registers."""
    o = tl.arange(0, BLOCK)
    return tl.load(p_x + o, mask=o < N, other=0.0)


@triton.jit
def store_field(p_x, b_x, N, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(p_x + o, b_x, mask=o < N)


@triton.jit
def neighbours(b_x, W, BLOCK: tl.constexpr):
    """x of the right, left, lower and upper neighbour; at the rim some token's value, which has weight 0.

    One gather for all four: the field goes through shared memory once, with two barriers.
    """
    o = tl.arange(0, BLOCK)
    last: tl.constexpr = BLOCK - 1
    after = tl.join(tl.minimum(o + 1, last), tl.minimum(o + W, last))
    before = tl.join(tl.maximum(o - 1, 0), tl.maximum(o - W, 0))
    index = tl.reshape(tl.join(after, before), [4 * BLOCK])
    b_after, b_before = tl.split(tl.reshape(tl.gather(b_x, index, 0), [BLOCK, 2, 2]))
    b_right, b_down = tl.split(b_after)
    b_left, b_up = tl.split(b_before)
    return b_right, b_left, b_down, b_up


@triton.jit
def _wider(low, high, poison, other_low, other_high, other_poison):
    return tl.minimum(low, other_low), tl.maximum(high, other_high), poison + other_poison


@triton.jit
def extent(b_x, m):
    """Smallest and largest value of a field; both NaN if one of its values is not finite."""
    b_low, b_high = tl.where(m, b_x, float("inf")), tl.where(m, b_x, float("-inf"))
    low, high, poison = tl.reduce((b_low, b_high, tl.where(m, b_x - b_x, 0.0)), 0, _wider)
    return low + poison, high + poison


@triton.jit
def _add_two(a, b, other_a, other_b):
    return a + other_a, b + other_b


@triton.jit
def _add_four(a, b, c, d, other_a, other_b, other_c, other_d):
    return a + other_a, b + other_b, c + other_c, d + other_d


@triton.jit
def sum_two(b_a, b_b):
    """Two sums in one reduction, which is barriers that a program waits for; as `sum_four`."""
    return tl.reduce((b_a, b_b), 0, _add_two)


@triton.jit
def sum_four(b_a, b_b, b_c, b_d):
    return tl.reduce((b_a, b_b, b_c, b_d), 0, _add_four)


@triton.jit
def divide_or_zero(x, y):
    return tl.where(y == 0, 0.0, x / tl.where(y == 0, 1.0, y))


@triton.jit
def min_max(b_x, m):
    low, high = extent(b_x, m)
    return tl.where(m, divide_or_zero(b_x - low, high - low), 0.0)


@triton.jit
def min_max_backward(b_dy, b_x, b_y, m):
    """The extremes' gradient is shared evenly by the tokens that attain them."""
    low, high = extent(b_x, m)
    scaled = divide_or_zero(b_dy, high - low)
    b_lowest, b_highest = (m & (b_x == low)).to(b_x.dtype), (m & (b_x == high)).to(b_x.dtype)
    to_low, from_high, lowest, highest = sum_four(scaled * (b_y - 1), scaled * b_y, b_lowest, b_highest)
    b_low_share = b_lowest * (to_low / tl.maximum(lowest, 1.0))
    return scaled + b_low_share - b_highest * (from_high / tl.maximum(highest, 1.0))


@triton.jit
def tanhshrink(b_z, LEVELS: tl.constexpr):
    """z - tanh(z), by a continued fraction where |z| <= 1; see `scm_fast.ops.diffusion_fields.tanhshrink`."""
    small = tl.abs(b_z) <= 1
    square = tl.where(small, b_z * b_z, 0.0)
    fraction = tl.zeros_like(square)
    for step in tl.static_range(LEVELS):
        fraction = square / (2 * (LEVELS - step) + 1 + fraction)
    return tl.where(small, b_z / (1 + fraction) * fraction, b_z - (2 * tl.sigmoid(2 * b_z) - 1))


@triton.jit
def tanhshrink_slope(b_z, b_t):
    """tanh(z)^2 from z and t = z - tanh(z); where the difference would lose digits, tanh(z)^2 is 1."""
    return tl.where(tl.abs(b_z) > 16, 1.0, (b_z - b_t) * (b_z - b_t))


@triton.jit
def load_strided_field(p_F, stride_h, stride_w, m, W, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    return tl.load(p_F + (o // W) * stride_h + (o % W) * stride_w, mask=m, other=0.0).to(DTYPE)


# Products with the stencil M, and where a program of `activation_diffusion` keeps its fields:
#
#     (M x)_i = diagonal_i x_i + right_i x_{i+1} + left_i x_{i-1} + down_i x_{i+W} + up_i x_{i-W}
#
# On small grids (RESIDENT) what a loop uses stays in registers, and neighbours come from a gather. On large ones it
# is in slots of scratch memory. A field that `keep_field` kept is then the number of its slot.

# What a program keeps of its image in scratch memory, a slot of BLOCK lanes each. One base address serves all of
# them, so that addresses take no registers of their own. MATRIX, EXCHANGE, DOUT and SUMS are used unless RESIDENT.
MATRIX, EXCHANGE, ENTERING, HAS_RIGHT, EDGES, GAIN = (tl.constexpr(slot) for slot in (0, 5, 7, 8, 9, 11))
FORWARD_SLOTS = 12
NORMALISED, DEDGES, DF, RAW, DOUT, SUMS = (tl.constexpr(slot) for slot in (12, 13, 15, 16, 17, 18))
FILTERED = tl.constexpr(21)  # f_0 ... f_{L-1}, and after them r_0, M r_0 ... r_{K-2}, M r_{K-2}


@triton.jit
def _address(p_slots, slot, o, BLOCK: tl.constexpr):
    """Return pointers to elements o of a slot. AMD keeps addresses of slots in scalar registers, which are few."""
    if is_hip():
        return p_slots + (slot * BLOCK + o)
    else:
        return p_slots + slot * BLOCK + o


@triton.jit
def read(p_slots, slot, BLOCK: tl.constexpr):
    return tl.load(_address(p_slots, slot, tl.arange(0, BLOCK), BLOCK))


@triton.jit
def read_near(p_slots, slot, shift, N, BLOCK: tl.constexpr):
    """The token so many places on, or back where `shift` is negative; 0 beyond the grid."""
    o = tl.arange(0, BLOCK) + shift
    return tl.load(_address(p_slots, slot, o, BLOCK), mask=(o >= 0) & (o < N), other=0.0)


@triton.jit
def write(p_slots, slot, b_x, BLOCK: tl.constexpr):
    tl.store(_address(p_slots, slot, tl.arange(0, BLOCK), BLOCK), b_x)


@triton.jit
def keep_field(b_x, p_slots, slot, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """A field to be used in a loop: as it is, or its slot in memory where registers are scarce."""
    if RESIDENT:
        return b_x
    else:
        write(p_slots, slot, b_x, BLOCK)
        return slot


@triton.jit
def kept_field(kept, p_slots, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """The field that `keep_field` kept."""
    if RESIDENT:
        return kept
    else:
        return read(p_slots, kept, BLOCK)


@triton.jit
def exchange_with_neighbours(
    b_x, p_slots, exchange: tl.constexpr, W, RESIDENT: tl.constexpr, BLOCK: tl.constexpr
):
    """Return what `near_value` takes x of neighbours from: registers, or one of two slots of exchange in turn.

    Who writes a slot again has passed the barrier of the other one, and so have all who read it.
    """
    if RESIDENT:
        return neighbours(b_x, W, BLOCK)
    else:
        write(p_slots, EXCHANGE + exchange, b_x, BLOCK)
        tl.debug_barrier()
        return EXCHANGE + exchange


@triton.jit
def near_value(near, p_slots, direction: tl.constexpr, N, W, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """x of the right, left, lower or upper neighbour, direction 0 to 3."""
    if RESIDENT:
        return near[direction]
    else:
        distance = 1 if direction < 2 else W
        return read_near(p_slots, near, distance if direction % 2 == 0 else -distance, N, BLOCK)


@triton.jit
def product(b_x, near, M, p_slots, N, W, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """M x, given x and its neighbours; M = (diagonal, right, left, down, up), each kept by `keep_field`."""
    b_y = kept_field(M[0], p_slots, RESIDENT, BLOCK) * b_x
    b_y += kept_field(M[1], p_slots, RESIDENT, BLOCK) * near_value(near, p_slots, 0, N, W, RESIDENT, BLOCK)
    b_y += kept_field(M[2], p_slots, RESIDENT, BLOCK) * near_value(near, p_slots, 1, N, W, RESIDENT, BLOCK)
    b_y += kept_field(M[3], p_slots, RESIDENT, BLOCK) * near_value(near, p_slots, 2, N, W, RESIDENT, BLOCK)
    b_y += kept_field(M[4], p_slots, RESIDENT, BLOCK) * near_value(near, p_slots, 3, N, W, RESIDENT, BLOCK)
    return b_y


@triton.jit
def apply(b_x, p_slots, exchange: tl.constexpr, M, N, W, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    near = exchange_with_neighbours(b_x, p_slots, exchange, W, RESIDENT, BLOCK)
    return product(b_x, near, M, p_slots, N, W, RESIDENT, BLOCK)


@triton.jit
def _has_right(H, W, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """1 for tokens with a right neighbour, else 0."""
    o = tl.arange(0, BLOCK)
    return ((o < H * W) & (o % W < W - 1)).to(DTYPE)


@triton.jit
def degree(p_slots, N, W, BLOCK: tl.constexpr):
    """Count the neighbours of each token."""
    o = tl.arange(0, BLOCK)
    b_beside = read(p_slots, HAS_RIGHT, BLOCK) + read_near(p_slots, HAS_RIGHT, -1, N, BLOCK)
    return b_beside + tl.where(o < N - W, 1.0, 0.0) + tl.where((o < N) & (o >= W), 1.0, 0.0)


@triton.jit
def write_grid(p_slots, p_edges, H, W, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """Fill the slots that `matrix` reads; p_edges points to the (2, H, W) edges of the image."""
    N = H * W
    write(p_slots, HAS_RIGHT, _has_right(H, W, DTYPE, BLOCK), BLOCK)
    write(p_slots, EDGES, load_field(p_edges, N, BLOCK), BLOCK)
    write(p_slots, EDGES + 1, load_field(p_edges + N, N, BLOCK), BLOCK)


@triton.jit
def matrix(p_slots, lam, scale: tl.constexpr, N, W, RESIDENT: tl.constexpr, BLOCK: tl.constexpr):
    """M = scale * L of one image, kept."""
    o = tl.arange(0, BLOCK)
    b_right = scale * (1 - lam * read(p_slots, EDGES, BLOCK))
    b_left = scale * (1 - lam * read_near(p_slots, EDGES, -1, N, BLOCK))
    b_down = scale * (1 - lam * read(p_slots, EDGES + 1, BLOCK))
    b_up = scale * (1 - lam * read_near(p_slots, EDGES + 1, -W, N, BLOCK))
    return (
        keep_field(degree(p_slots, N, W, BLOCK) * (scale * (lam - 1)), p_slots, MATRIX, RESIDENT, BLOCK),
        keep_field(read(p_slots, HAS_RIGHT, BLOCK) * b_right, p_slots, MATRIX + 1, RESIDENT, BLOCK),
        keep_field(
            read_near(p_slots, HAS_RIGHT, -1, N, BLOCK) * b_left, p_slots, MATRIX + 2, RESIDENT, BLOCK
        ),
        keep_field(tl.where(o < N - W, b_down, 0.0), p_slots, MATRIX + 3, RESIDENT, BLOCK),
        keep_field(tl.where((o < N) & (o >= W), b_up, 0.0), p_slots, MATRIX + 4, RESIDENT, BLOCK),
    )
