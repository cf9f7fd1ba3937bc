"""Arithmetic on a scalar field that lives in a program's registers, one lane per token.

Lanes beyond the N tokens hold 0; `m` marks the tokens. The counterpart in torch is `scm_fast.ops.diffusion_fields`.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
