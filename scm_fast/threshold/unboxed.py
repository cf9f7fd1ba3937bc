"""The choice of a threshold by images alone, without a box.

A cut of the map is good if it also cuts the network's own patch tokens well. Tokens x_i, centred per image, are a
graph with the weights A_ij = max(0, cos(x_i, x_j)). A cut that leaves similar tokens together keeps most of the
weight that its two parts have within themselves:

    separation = (within(object) / of(object) + within(rest) / of(rest)) / 2

where within(P) is the sum of A_ij over i, j in P and of(P) that over i in P and all j. It is 1 - Ncut / 2, with the
normalised cut of Shi and Malik (2000), and in [0, 1]. Its mean over images, as a function of the rule's value, has
a peak near the value that boxes would choose. The peak of few images is noise, so the default counts as
`DEFAULT_COUNTS` images more.

Callers see three functions: `token_separation` of a batch, `no_separation` for images without tokens, and
`choose_unboxed` for what both gave. What the columns stand for is known here alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .choice import PRESCRIBED, Choice
from .rules import MapStatistics, get_rule, map_statistics, normalize_map
from .value import DEFAULT_THRESHOLD, Threshold

if TYPE_CHECKING:
    from torch import Tensor

_STEP = 0.1
SEPARATION_VALUES = np.round(np.arange(-0.5, 1.2 + _STEP / 2, _STEP), 1)  # (K,), of the default's rule
FEWEST_IMAGES = 10  # of fewer the peak is anywhere
# Images that the default stands for. The peak has an error of its own, whatever the number of images: on
# butterflies and cars it is 0.2 to 0.4 below the best value.
DEFAULT_COUNTS = 50
_GRAPH_ELEMENTS = 1 << 24  # of the images whose graphs are made at once


def token_separation(maps: NDArray, tokens: Tensor) -> NDArray[np.float32]:
    """Return how well the parts separate the tokens at K `SEPARATION_VALUES`, (B, K); 0 where a part is empty.

    maps: (B, H, W), activation maps on the token grid.
    tokens: (B, D, H, W), on any device.
    """
    import torch

    scores = np.stack([normalize_map(np.asarray(m, dtype=np.float64)) for m in maps])
    statistics = MapStatistics(*np.array([map_statistics(s) for s in scores]).T[:, :, None])  # each (B, 1)
    cuts = np.asarray(get_rule(DEFAULT_THRESHOLD.rule).cut(statistics, SEPARATION_VALUES))  # (B, K)
    inside = torch.from_numpy(scores.reshape(len(maps), 1, -1) > cuts[:, :, None]).to(tokens.device).float()
    x = tokens.float().flatten(2)
    x = torch.nn.functional.normalize(x - x.mean(2, keepdim=True), dim=1)
    at_once = max(1, _GRAPH_ELEMENTS // x.shape[2] ** 2)
    parts = zip(inside.split(at_once), x.split(at_once), strict=True)
    return torch.cat([_separation(*part) for part in parts]).cpu().numpy()


def _separation(inside: Tensor, x: Tensor) -> Tensor:
    """(B, K), of K cuts (B, K, N), 1 in the object and 0 elsewhere, of unit tokens (B, D, N)."""
    import torch

    graph = (x.transpose(1, 2) @ x).clamp_(min=0)  # (B, N, N)
    towards_object = inside @ graph  # (B, K, N), the weight between the object and each token
    within_object = (towards_object * inside).sum(2)
    of_object = towards_object.sum(2)
    of_rest = graph.sum((1, 2))[:, None] - of_object
    within_rest = of_rest - (of_object - within_object)
    separation = (within_object / of_object + within_rest / of_rest) / 2
    count = inside.sum(2)
    return torch.where((count > 0) & (count < inside.shape[2]), separation, 0).nan_to_num(0, 0, 0)


def no_separation(images: int) -> NDArray[np.float32]:
    """Return the rows (images, K) of images whose tokens are not known."""
    return np.zeros((images, len(SEPARATION_VALUES)), np.float32)


def choose_unboxed(
    separation: NDArray, interpolation: str = "cubic", prescribed: Threshold | None = None
) -> Choice:
    """Choose by the separation (N, K) of N images: the peak, drawn towards the default; of few images the default.

    prescribed: where the method cuts its own map, which images then need not choose.
    """
    if prescribed is not None:
        threshold = Threshold(prescribed.value, prescribed.rule, interpolation)
        return Choice(threshold, PRESCRIBED)
    telling = separation[separation.any(axis=1)]
    default = DEFAULT_THRESHOLD
    count = len(telling)
    if count < FEWEST_IMAGES:
        threshold = Threshold(default.value, default.rule, interpolation)
        return Choice(
            threshold,
            f"the default: {count} images are too few to choose by, {FEWEST_IMAGES} are needed",
        )
    peak = separation_peak(telling.mean(axis=0, dtype=np.float64))
    value = (DEFAULT_COUNTS * default.value + count * peak) / (DEFAULT_COUNTS + count)
    threshold = Threshold(round(value, 3), default.rule, interpolation)
    return Choice(threshold, f"chosen without boxes, by the tokens of {count} images")


def separation_peak(curve: NDArray) -> float:
    """The value at which a curve over `SEPARATION_VALUES` is highest, by a parabola through its highest points."""
    highest = int(curve.argmax())
    if not 0 < highest < len(curve) - 1:
        return float(SEPARATION_VALUES[highest])
    before, peak, after = curve[highest - 1 : highest + 2]
    bend = before - 2 * peak + after
    return float(SEPARATION_VALUES[highest] + (_STEP * 0.5 * (before - after) / bend if bend else 0))
