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
def right_of(b_x, BLOCK: tl.constexpr):
    """x_{i+1}. At the rim this and the three below give some token's value, which has weight 0."""
    return tl.gather(b_x, tl.minimum(tl.arange(0, BLOCK) + 1, BLOCK - 1), 0)


@triton.jit
def left_of(b_x, BLOCK: tl.constexpr):
    return tl.gather(b_x, tl.maximum(tl.arange(0, BLOCK) - 1, 0), 0)


@triton.jit
def below(b_x, W, BLOCK: tl.constexpr):
    return tl.gather(b_x, tl.minimum(tl.arange(0, BLOCK) + W, BLOCK - 1), 0)


@triton.jit
def above(b_x, W, BLOCK: tl.constexpr):
    return tl.gather(b_x, tl.maximum(tl.arange(0, BLOCK) - W, 0), 0)


@triton.jit
def extent(b_x, m):
    """Smallest and largest value of a field; both NaN if one of its values is."""
    poison = tl.sum(tl.where(m, b_x - b_x, 0.0), 0)
    low = tl.min(tl.where(m, b_x, float("inf")), 0)
    high = tl.max(tl.where(m, b_x, float("-inf")), 0)
    return low + poison, high + poison


@triton.jit
def divide_or_zero(x, y):
    return tl.where(y == 0, 0.0, x / tl.where(y == 0, 1.0, y))


@triton.jit
def min_max(b_x, m):
    low, high = extent(b_x, m)
    return tl.where(m, divide_or_zero(b_x - low, high - low), 0.0)


@triton.jit
def share_gradient(b_chosen, gradient):
    """`gradient` of an extreme, shared evenly by the tokens that attain it."""
    chosen = b_chosen.to(gradient.dtype)
    return chosen * (gradient / tl.maximum(tl.sum(chosen, 0), 1.0))


@triton.jit
def min_max_backward(b_dy, b_x, b_y, m):
    low, high = extent(b_x, m)
    scaled = divide_or_zero(b_dy, high - low)
    to_low = tl.sum(scaled * (b_y - 1), 0)
    to_high = -tl.sum(scaled * b_y, 0)
    return scaled + share_gradient(m & (b_x == low), to_low) + share_gradient(m & (b_x == high), to_high)


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
