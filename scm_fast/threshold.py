"""`Threshold`: where a map is cut into object and background.

It is a value together with what the value means: the rule that makes a level of it, and how maps are resized
before they are cut. A value that was chosen on maps resized one way gives other boxes on maps resized another
way, so the three travel together: in a model's `config.json`, in `metrics.json` and in every result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

INTERPOLATIONS = ("cubic", "linear")
LEVELS = 256  # of a map when it is cut


def _global(scores: NDArray[np.float64], value: float) -> float:
    """The same share of every map's range."""
    return value


# rule -> where in [0, 1) to cut a map of scores in [0, 1], (h, w), for a value
RULES: dict[str, Callable[[NDArray[np.float64], float], float]] = {"global": _global}


@dataclass(frozen=True)
class Threshold:
    """value: of the rule's parameter; for `global`, in [0, 1) of the map's range."""

    value: float
    rule: str = "global"
    interpolation: str = "cubic"

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InputError(f"threshold rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        if self.interpolation not in INTERPOLATIONS:
            raise InputError(
                f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got {self.interpolation!r}"
            )
        number = isinstance(self.value, (int, float)) and not isinstance(self.value, bool)
        if not number or not math.isfinite(self.value) or not 0 <= self.value < 1:
            raise InputError(f"threshold must be in [0, 1), got {self.value!r}")

    def __str__(self) -> str:
        return f"{self.value:g}"

    def level(self, scores: NDArray[np.float64]) -> int:
        """The level of 0 ... 255 that pixels of a map of scores in [0, 1] must exceed."""
        return threshold_level(RULES[self.rule](scores, self.value))


def threshold_from_json(value: Any) -> Threshold | None:
    """Of a threshold's fields, of a number alone, which is a global threshold, or of None."""
    if isinstance(value, dict) and "value" in value and value.keys() <= {"value", "rule", "interpolation"}:
        return Threshold(**value)
    return None if value is None else Threshold(value)


# TS-CAM's for CUB. One that was chosen on validation images is better; a checkpoint keeps it if there is one.
DEFAULT_THRESHOLD = Threshold(0.1)


def threshold_to_use(stored: Threshold | None, given: float | Threshold | None = None) -> Threshold:
    """What is given, else what the checkpoint has, else the default.

    A number is a global threshold for maps that are resized as the checkpoint's own wants them.
    """
    own = DEFAULT_THRESHOLD if stored is None else stored
    if given is None or isinstance(given, Threshold):
        return given or own
    return Threshold(given, interpolation=own.interpolation)


def threshold_level(share: float) -> int:
    """The level of 0 ... 255 at a share of the range: cut, not rounded."""
    return int(share * (LEVELS - 1))
