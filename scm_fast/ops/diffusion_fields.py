"""Arithmetic on scalar fields shared by the torch implementations, with hand-written gradients.

A field holds one number per token and image, as (N, B): the images are contiguous, so that a shift along the
grid is a contiguous slice of the first dimension. Reductions are over the tokens of each image.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Levels of the continued fraction of tanh below that make |z| <= 1 exact to the last digits.
_FRACTION_LEVELS = {torch.float32: range(11, 1, -2), torch.float64: range(19, 1, -2)}


def field_dtype(S: Tensor) -> torch.dtype:
    """The dtype fields are computed in: float64 for a float64 semantic map, else float32."""
    return torch.float64 if S.dtype == torch.float64 else torch.float32


def divide_or_zero(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, 0 where the denominator is 0. NaN stays NaN."""
    return torch.where(denominator == 0, 0.0, numerator / denominator)


def tanhshrink(z: Tensor) -> tuple[Tensor, Tensor]:
    """z - tanh(z) without cancellation, and its derivative tanh(z)^2.

    With c = z^2/(3 + z^2/(5 + z^2/(7 + ...))), tanh(z) = z/(1 + c), hence z - tanh(z) = z c/(1 + c): every
    term is positive, so small z keeps its full relative precision, where a literal `z - tanh(z)` in float32
    loses all digits at |z| = 1e-3.
    """
    small = z.abs() <= 1
    square = torch.where(small, z * z, 0.0)
    fraction = torch.zeros_like(square)
    for level in _FRACTION_LEVELS[z.dtype]:
        fraction = square / (level + fraction)
    tanh = torch.where(small, z / (1 + fraction), torch.tanh(z))
    return torch.where(small, tanh * fraction, z - tanh), tanh * tanh


def share_gradient(chosen: Tensor, gradient: Tensor) -> Tensor:
    """`gradient` (1, B) of an extreme, shared evenly by the tokens (N, B) that attain it."""
    return chosen * (gradient / chosen.sum(0, keepdim=True))


def min_max(x: Tensor) -> Tensor:
    """(x - min) / (max - min) of each image; a constant field becomes zeros."""
    low, high = x.aminmax(dim=0, keepdim=True)
    return divide_or_zero(x - low, high - low)


def min_max_backward(dy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Gradient of `min_max` for its input x and output y."""
    low, high = x.aminmax(dim=0, keepdim=True)
    scaled = divide_or_zero(dy, high - low)
    to_low = (scaled * (y - 1)).sum(0, keepdim=True)
    to_high = -(scaled * y).sum(0, keepdim=True)
    return scaled + share_gradient(x == low, to_low) + share_gradient(x == high, to_high)


def soft_threshold(diffused: Tensor, F: Tensor, beta: Tensor) -> Tensor:
    """f = minmax(tanhshrink(diffused / (beta max F)))."""
    return min_max(tanhshrink(divide_or_zero(diffused, beta * F.amax(0, keepdim=True)))[0])


def soft_threshold_backward(
    df: Tensor, diffused: Tensor, F: Tensor, beta: Tensor, f: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `soft_threshold` for diffused, F and beta."""
    peak = F.amax(0, keepdim=True)
    threshold = beta * peak
    z = divide_or_zero(diffused, threshold)
    shrunk, slope = tanhshrink(z)
    dz = min_max_backward(df, shrunk, f) * slope
    dthreshold = divide_or_zero(-(dz * z).sum(0, keepdim=True), threshold)
    return (
        divide_or_zero(dz, threshold),
        share_gradient(peak == F, dthreshold * beta),
        (dthreshold * peak).sum(),
    )
