"""Logits and maps in float32, whatever the precision of the network's products.

bf16 has three digits. Of 200 logits that are rounded to it, some of the best six are equal in every seventh image:
then their order is no longer the network's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def single(x: Tensor) -> Tensor:
    """Return `x` in float32, or as it is if it is in float64. PyTorch 2.6 cannot export `promote_types`."""
    return x if x.dtype == torch.float64 else x.float()


def in_single(head: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Call a head in float32 although autocast may be on: for classes, whose order products in 16 bits decide."""
    device = inputs[0].device.type
    if not torch.is_autocast_enabled(device):
        return single(head(*inputs))
    with torch.autocast(device, enabled=False):
        return head(*map(single, inputs))
