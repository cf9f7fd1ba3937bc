"""Choosing a threshold from images without boxes: where the cut separates the network's own tokens best.

A map that is cut into object and background also cuts the patch tokens in two groups. The share of the tokens'
variance that the two groups explain,

    n / (c (n - c)) * |sum of x over the object|^2 / sum of |x|^2

with n tokens x of D channels, centred per image, and c of them in the object, is highest where object and
background differ most, whatever they look like. Its mean over images, as a function of the rule's value, has a
peak near the value that boxes would choose: never far off, but for some networks and objects too low. So what is
used lies halfway between the default, which serves all, and the peak.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..threshold import DEFAULT_THRESHOLD, RULES, MapStatistics, Threshold, map_statistics
from .boxes import normalize_map

STEP = 0.1
VALUES = np.round(np.arange(-0.5, 1.2 + STEP / 2, STEP), 1)  # (K,), of the default's rule
FEWEST = 10  # images; of fewer the peak is anywhere


def token_separation(maps: NDArray, tokens: Tensor) -> NDArray[np.float32]:
    """The share that the two parts explain at each of K `VALUES`, (B, K); 0 where a part is empty.

    maps: (B, H, W), activation maps on the token grid.
    tokens: (B, D, H, W), on any device.
    """
    scores = np.stack([normalize_map(np.asarray(m, dtype=np.float64)) for m in maps])
    statistics = MapStatistics(*np.array([map_statistics(s) for s in scores]).T[:, :, None])  # each (B, 1)
    cuts = np.asarray(RULES[DEFAULT_THRESHOLD.rule](statistics, VALUES))  # (B, K)
    inside = torch.from_numpy(scores.reshape(len(maps), 1, -1) > cuts[:, :, None]).to(tokens.device)
    x = tokens.float().flatten(2)
    x = x - x.mean(2, keepdim=True)
    count = inside.sum(2)
    summed = torch.einsum("bkn,bdn->bkd", inside.float(), x)
    n = x.shape[2]
    explained = n * summed.square().sum(2) / (count * (n - count)) / x.square().sum((1, 2))[:, None]
    return torch.where((count > 0) & (count < n), explained, 0).nan_to_num(0, 0, 0).cpu().numpy()


class UnboxedChoice(NamedTuple):
    """A threshold that was chosen without boxes, and how, in words."""

    threshold: Threshold
    reason: str


def choose_unboxed(separation: NDArray, interpolation: str = "cubic") -> UnboxedChoice:
    """By the separation (N, K) of N images: halfway from the default to the peak; of few images the default."""
    telling = separation[separation.any(axis=1)]
    default = DEFAULT_THRESHOLD
    if len(telling) < FEWEST:
        threshold = Threshold(default.value, default.rule, interpolation)
        return UnboxedChoice(
            threshold, f"the default: {len(telling)} images are too few to choose by, {FEWEST} are needed"
        )
    value = (default.value + separation_peak(telling.mean(axis=0, dtype=np.float64))) / 2
    threshold = Threshold(round(value, 3), default.rule, interpolation)
    return UnboxedChoice(threshold, f"chosen without boxes, by the tokens of {len(telling)} images")


def separation_peak(curve: NDArray) -> float:
    """The value at which a curve over `VALUES` is highest, by a parabola through its highest points."""
    highest = int(curve.argmax())
    if not 0 < highest < len(curve) - 1:
        return float(VALUES[highest])
    before, peak, after = curve[highest - 1 : highest + 2]
    bend = before - 2 * peak + after
    return float(VALUES[highest] + (STEP * 0.5 * (before - after) / bend if bend else 0))
