"""The launchers' shared part: the device that a kernel runs on, and how the tokens of a map lie in memory."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


def on_device_of(tensor: Tensor) -> contextlib.AbstractContextManager:
    """Make Triton, which launches on the current device, launch on the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def warp_size(tensor: Tensor) -> int:
    """Lanes of a warp on the tensor's device."""
    if tensor.is_cuda and torch.version.hip:
        return torch.cuda.get_device_properties(tensor.device).warp_size
    return 32


class Layout(NamedTuple):
    """Layout of the tokens or channels of a map: number i at (i // width) * stride + (i % width) * inner.

    With the width 1, which the compiler takes as a constant, i * stride is all. Only then does it see that
    neighbours lie side by side, and lets the lanes of a warp read them together.
    """

    width: int
    stride: int
    inner: int

    @classmethod
    def of_tokens(cls, S: Tensor) -> Layout:
        """Return the layout of S (B, C, H, W): flat where the rows of the grid follow each other without a gap."""
        H, W = S.shape[2:]
        row, column = S.stride()[2:]
        if H == 1 or W == 1 or row == W * column:
            return cls(1, row if W == 1 else column, 0)
        return cls(W, row, column)

    @classmethod
    def of_channels(cls, S: Tensor) -> Layout:
        return cls(1, S.stride(1), 0)


@triton.jit
def item_offset(o, layout):
    """Elements from the first token, or channel, to number o; `layout` is a `Layout`."""
    return (o // layout[0]).to(tl.int64) * layout[1] + (o % layout[0]) * layout[2]
