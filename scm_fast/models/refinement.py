"""SCM's diffusion on a map that is there already: neighbouring patches with similar tokens share what it says."""

from __future__ import annotations

import torch
from torch import Tensor

from ..spatial_calibration import SpatialCalibration


@torch.no_grad()
def refine_maps(tokens: Tensor, maps: Tensor) -> Tensor:
    """Maps (B, k, H, W) after one calibration block at its initial parameters, with E from tokens (B, D, H, W).

    They are min-max normalised per image first, as SCM's attention map is. A stack of blocks spreads a map that was
    not trained for it too far.
    """
    calibration = SpatialCalibration.from_preset("paper", num_blocks=1).to(tokens.device)
    refined = [calibration(tokens.float(), one.float()).attention for one in maps.unbind(1)]
    return torch.stack(refined, dim=1)
