"""`Threshold`: where a map is cut into object and background.

It is a value together with what the value means: the rule that makes a level of it, and how maps are resized
before they are cut. A value that was chosen for one rule, or on maps resized one way, gives other boxes with
another, so the three travel together: in a model's `config.json`, in `metrics.json` and in every result.

| rule        | cuts a map of scores in [0, 1] at        | value                              |
|-------------|------------------------------------------|------------------------------------|
| `global`    | value                                    | in [0, 1), the same for all images |
| `deviation` | mean + value * standard deviation        | any number                         |
| `geometric` | value * sqrt(mean * Otsu's threshold)    | any number; 1 their geometric mean |
| `between`   | mean + value * (Otsu's threshold - mean) | any number; 0 the mean, 1 Otsu's   |

It is written `between:0.2`; a number alone is a global threshold.

Boxes choose a value best. Without boxes the images do, by how well a cut of the map also cuts the network's own
patch tokens. Tokens x_i, centred per image, are a graph with the weights A_ij = max(0, cos(x_i, x_j)). A cut that
leaves similar tokens together keeps most of the weight that its two parts have within themselves:

    separation = (within(object) / of(object) + within(rest) / of(rest)) / 2

where within(P) is the sum of A_ij over i, j in P and of(P) that over i in P and all j. It is 1 - Ncut / 2, with the
normalised cut of Shi and Malik (2000), and in [0, 1]. Its mean over images, as a function of the rule's value, has
a peak near the value that boxes would choose. The peak of few images is noise, so the default counts as
`DEFAULT_COUNTS` images more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from .errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

INTERPOLATIONS = ("cubic", "linear")
LEVELS = 256  # of a map when it is cut
CUTS = LEVELS - 1  # levels at which it can be cut: above the last there is nothing

Numbers: TypeAlias = "float | NDArray[np.float64]"


def normalize_map(scores: NDArray) -> NDArray[np.float64]:
    """Min-max to [0, 1]; a constant map, or one with a value that is not finite, becomes zeros."""
    low, high = scores.min(), scores.max()
    # NaN and infinity both end up in the range, and one comparison refuses them and the constant map.
    with np.errstate(invalid="ignore"):
        if not 0 < high - low < np.inf:
            return np.zeros(scores.shape)
    shifted = scores - low
    return shifted / shifted.max()


class MapStatistics(NamedTuple):
    """Of a map of scores in [0, 1], or of several; what the rules of each image's own know of it."""

    mean: Numbers
    std: Numbers
    otsu: Numbers  # Otsu's threshold of the map's levels, in [0, 1]


def map_statistics(scores: NDArray[np.float64]) -> MapStatistics:
    """Of an (h, w) map in [0, 1]."""
    otsu = cv2.threshold(to_uint8(scores), 0, LEVELS - 1, cv2.THRESH_OTSU)[0]
    return MapStatistics(float(scores.mean()), float(scores.std()), otsu / (LEVELS - 1))


def to_uint8(scores: NDArray) -> NDArray[np.uint8]:
    """A map in [0, 1] to whole levels 0 ... 255, cut and not rounded."""
    return (scores * (LEVELS - 1)).astype(np.uint8)


# rule -> where in [0, 1] to cut maps with these statistics, for a value; value and statistics broadcast
RULES: dict[str, Callable[[MapStatistics, Numbers], Numbers]] = {
    "global": lambda maps, value: value + 0 * maps.mean,
    "deviation": lambda maps, value: maps.mean + value * maps.std,
    "geometric": lambda maps, value: value * np.sqrt(maps.mean * maps.otsu),
    "between": lambda maps, value: maps.mean + value * (maps.otsu - maps.mean),
}
BEST = "best"  # in place of a rule: the one that serves best


def check_rule(rule: str, known: tuple[str, ...] = tuple(RULES)) -> None:
    if rule not in known:
        raise InputError(f"threshold rule must be one of {', '.join(known)}, got {rule!r}")


@dataclass(frozen=True)
class Threshold:
    value: float
    rule: str = "global"
    interpolation: str = "cubic"

    def __post_init__(self) -> None:
        check_rule(self.rule)
        if self.interpolation not in INTERPOLATIONS:
            raise InputError(
                f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got {self.interpolation!r}"
            )
        number = isinstance(self.value, (int, float)) and not isinstance(self.value, bool)
        if not number or not math.isfinite(self.value):
            expected = "in [0, 1)" if self.rule == "global" else "a finite number"
            raise InputError(f"threshold must be {expected}, got {self.value!r}")
        if self.rule == "global" and not 0 <= self.value < 1:
            raise InputError(f"threshold must be in [0, 1), got {self.value!r}")

    def __str__(self) -> str:
        return f"{self.rule}:{self.value:g}"

    @property
    def in_table(self) -> str:
        """With as many digits as its neighbours."""
        return f"{self.rule} {self.value:.3f}"

    def level(self, scores: NDArray[np.float64]) -> int:
        """The level of 0 ... 254 that pixels of a map of scores in [0, 1] must exceed."""
        return int(cut_levels(self.rule, self.value, map_statistics(scores)))


def cut_levels(rule: str, value: Numbers, maps: MapStatistics) -> NDArray[np.int64]:
    """The levels of 0 ... 254 at which a rule cuts maps: cut, not rounded."""
    shares = np.asarray(RULES[rule](maps, value), dtype=np.float64)
    return np.clip(shares * (LEVELS - 1), 0, CUTS - 1).astype(np.int64)


# Where nothing is known of the images but themselves: it serves untrained attention, TS-CAM and SCM, small
# objects and large ones. `choose_unboxed` moves it where the images say so.
DEFAULT_THRESHOLD = Threshold(0.2, "between")


def make_threshold(given: float | str | Threshold, interpolation: str = "cubic") -> Threshold:
    """Of a number, which is a global threshold, or a text such as `0.3` or `between:0.3`."""
    if isinstance(given, Threshold):
        return given
    if not isinstance(given, str):
        return Threshold(given, interpolation=interpolation)
    rule, colon, text = given.rpartition(":")
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"threshold must be a number, or such as between:0.3, got {given!r}") from None
    return Threshold(value, rule if colon else "global", interpolation)


def threshold_from_json(value: Any) -> Threshold | None:
    """Of a threshold's fields, of a number alone, which is a global threshold, or of None."""
    if isinstance(value, dict) and "value" in value and value.keys() <= {"value", "rule", "interpolation"}:
        return Threshold(**value)
    return None if value is None else Threshold(value)


def threshold_to_use(stored: Threshold | None, given: float | str | Threshold | None = None) -> Threshold:
    """What is given, else what the checkpoint has, else the default.

    A number or a text is for maps that are resized as the checkpoint's own wants them.
    """
    own = DEFAULT_THRESHOLD if stored is None else stored
    return own if given is None else make_threshold(given, own.interpolation)


# Choosing without boxes

_STEP = 0.1
SEPARATION_VALUES = np.round(np.arange(-0.5, 1.2 + _STEP / 2, _STEP), 1)  # (K,), of the default's rule
FEWEST_IMAGES = 10  # of fewer the peak is anywhere
DEFAULT_COUNTS = (
    20  # images: what the peaks of 20 differ by among themselves, those of networks differ by, too
)
_GRAPH_ELEMENTS = 1 << 24  # of the images whose graphs are made at once


def token_separation(maps: NDArray, tokens: Tensor) -> NDArray[np.float32]:
    """How well the two parts separate the tokens at each of K `SEPARATION_VALUES`, (B, K); 0 where a part is empty.

    maps: (B, H, W), activation maps on the token grid.
    tokens: (B, D, H, W), on any device.
    """
    import torch

    scores = np.stack([normalize_map(np.asarray(m, dtype=np.float64)) for m in maps])
    statistics = MapStatistics(*np.array([map_statistics(s) for s in scores]).T[:, :, None])  # each (B, 1)
    cuts = np.asarray(RULES[DEFAULT_THRESHOLD.rule](statistics, SEPARATION_VALUES))  # (B, K)
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


class UnboxedChoice(NamedTuple):
    """A threshold that was chosen without boxes, and how, in words."""

    threshold: Threshold
    reason: str


def choose_unboxed(separation: NDArray, interpolation: str = "cubic") -> UnboxedChoice:
    """By the separation (N, K) of N images: the peak, drawn towards the default; of few images the default."""
    telling = separation[separation.any(axis=1)]
    default = DEFAULT_THRESHOLD
    count = len(telling)
    if count < FEWEST_IMAGES:
        threshold = Threshold(default.value, default.rule, interpolation)
        return UnboxedChoice(
            threshold,
            f"the default: {count} images are too few to choose by, {FEWEST_IMAGES} are needed",
        )
    peak = separation_peak(telling.mean(axis=0, dtype=np.float64))
    value = (DEFAULT_COUNTS * default.value + count * peak) / (DEFAULT_COUNTS + count)
    threshold = Threshold(round(value, 3), default.rule, interpolation)
    return UnboxedChoice(threshold, f"chosen without boxes, by the tokens of {count} images")


def separation_peak(curve: NDArray) -> float:
    """The value at which a curve over `SEPARATION_VALUES` is highest, by a parabola through its highest points."""
    highest = int(curve.argmax())
    if not 0 < highest < len(curve) - 1:
        return float(SEPARATION_VALUES[highest])
    before, peak, after = curve[highest - 1 : highest + 2]
    bend = before - 2 * peak + after
    return float(SEPARATION_VALUES[highest] + (_STEP * 0.5 * (before - after) / bend if bend else 0))
