"""`Threshold`: a value, its rule, and how maps are resized before they are cut.

A value that was chosen for one rule, or on maps resized one way, gives other boxes with another. So the three
travel together: in a model's `config.json`, in `metrics.json` and in every result. A threshold is written
`between:0.3`; a number alone is a global threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .rules import cut_levels, get_rule, map_statistics

INTERPOLATIONS = ("cubic", "linear")


@dataclass(frozen=True)
class Threshold:
    value: float
    rule: str = "global"
    interpolation: str = "cubic"

    def __post_init__(self) -> None:
        rule = get_rule(self.rule)
        if self.interpolation not in INTERPOLATIONS:
            raise InputError(
                f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got {self.interpolation!r}"
            )
        rule.check(self.value)

    def __str__(self) -> str:
        return f"{self.rule}:{self.value:g}"

    @property
    def in_table(self) -> str:
        """Write it with as many digits as its neighbours."""
        return f"{self.rule} {self.value:.3f}"

    def level(self, scores: NDArray[np.float64]) -> int:
        """Return the level of 0 ... 254 that pixels of a map of scores in [0, 1] must exceed."""
        return int(cut_levels(self.rule, self.value, map_statistics(scores)))


# Where nothing is known of the images but themselves: it serves untrained attention, TS-CAM and SCM, small
# objects and large ones. `choose_unboxed` moves it where the images say so.
DEFAULT_THRESHOLD = Threshold(0.3, "between")


def make_threshold(given: float | str | Threshold, interpolation: str = "cubic") -> Threshold:
    """Read a number, which is a global threshold, or a text such as `0.3` or `between:0.3`."""
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
    """Read a threshold's fields, a number alone, which is a global threshold, or None."""
    if isinstance(value, dict) and "value" in value and value.keys() <= {"value", "rule", "interpolation"}:
        return Threshold(**value)
    return None if value is None else Threshold(value)
