"""`Threshold`: where a map is cut into object and background.

It is a value together with what the value means: the rule that makes a level of it, and how maps are resized
before they are cut. A value that was chosen for one rule, or on maps resized one way, gives other boxes with
another, so the three travel together: in a model's `config.json`, in `metrics.json` and in every result.

| rule        | cuts a map of scores in [0, 1] at        | value                              |
|-------------|------------------------------------------|------------------------------------|
| `global`    | value                                    | in [0, 1), the same for all images |
| `deviation` | mean + value * standard deviation        | any number                         |
| `between`   | mean + value * (Otsu's threshold - mean) | any number; 0 the mean, 1 Otsu's   |
| `geometric` | value * sqrt(mean * Otsu's threshold)    | any number; 1 their geometric mean |

It is written `between:0.2`; a number alone is a global threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from .errors import InputError

INTERPOLATIONS = ("cubic", "linear")
LEVELS = 256  # of a map when it is cut
CUTS = LEVELS - 1  # levels at which it can be cut: above the last there is nothing

Numbers: TypeAlias = "float | NDArray[np.float64]"


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
    "between": lambda maps, value: maps.mean + value * (maps.otsu - maps.mean),
    "geometric": lambda maps, value: value * np.sqrt(maps.mean * maps.otsu),
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
# objects and large ones. See `evaluation.separation`, which moves it where the images say so.
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
