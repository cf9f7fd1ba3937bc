"""The rules that say at which level a map of scores in [0, 1] is cut.

| rule        | cuts at                                  | value                              |
|-------------|------------------------------------------|------------------------------------|
| `global`    | value                                    | in [0, 1), the same for all images |
| `deviation` | mean + value * standard deviation        | any number                         |
| `geometric` | value * sqrt(mean * Otsu's threshold)    | any number; 1 their geometric mean |
| `between`   | mean + value * (Otsu's threshold - mean) | any number; 0 the mean, 1 Otsu's   |

A further rule is one call of `register_rule`: every command, protocol and file then knows it by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

LEVELS = 256  # of a map when it is cut
CUTS = LEVELS - 1  # levels at which it can be cut: above the last there is nothing

Numbers: TypeAlias = "float | NDArray[np.float64]"


class MapStatistics(NamedTuple):
    """The statistics that a rule may use of a map of scores in [0, 1], or of several maps."""

    mean: Numbers
    std: Numbers
    otsu: Numbers  # Otsu's threshold of the map's levels, in [0, 1]


@dataclass(frozen=True)
class Rule:
    """A way to cut a map.

    name: by which options and files know it.
    meaning: its formula, for --help.
    cut: where in [0, 1] it cuts maps with these statistics, for a value; value and statistics broadcast.
    values: (V,) ascending, those that boxes choose from; None for the thresholds that the evaluator tries.
    low, high: a value is in [low, high).
    """

    name: str
    meaning: str
    cut: Callable[[MapStatistics, Numbers], Numbers]
    values: NDArray[np.float64] | None = None
    low: float = -math.inf
    high: float = math.inf

    def check(self, value: object) -> None:
        """Raise an InputError for a value that the rule cannot have."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not self.low <= value < self.high:  # type: ignore[operator]
            bounded = math.isfinite(self.low) and math.isfinite(self.high)
            expected = f"in [{self.low:g}, {self.high:g})" if bounded else "a finite number"
            raise InputError(f"threshold must be {expected}, got {value!r}")


_rules: dict[str, Rule] = {}
BEST = "best"  # in place of a rule: the one that serves best


def register_rule(rule: Rule) -> Rule:
    """Make a rule known by its name. Of rules that serve equally well, boxes choose the one that came last."""
    _rules[rule.name] = rule
    return rule


def rule_names() -> tuple[str, ...]:
    return tuple(_rules)


def rules_to_choose() -> tuple[str, ...]:
    """Return what a user may ask boxes to choose: the best of all rules, or the best value of one."""
    return BEST, *reversed(_rules)


def check_rule(rule: str, known: tuple[str, ...] | None = None) -> None:
    """Raise an InputError unless `rule` is one of `known`, by default of all rules."""
    known = rule_names() if known is None else known
    if rule not in known:
        raise InputError(f"threshold rule must be one of {', '.join(known)}, got {rule!r}")


def get_rule(name: str) -> Rule:
    check_rule(name)
    return _rules[name]


register_rule(
    Rule("global", "the value, for all images", lambda maps, value: value + 0 * maps.mean, low=0, high=1)
)
register_rule(
    Rule(
        "deviation",
        "mean + value * standard deviation",
        lambda maps, value: maps.mean + value * maps.std,
        np.round(np.arange(-1, 2.01, 0.05), 2),
    )
)
register_rule(
    Rule(
        "geometric",
        "value * sqrt(mean * Otsu's threshold)",
        lambda maps, value: value * np.sqrt(maps.mean * maps.otsu),
        np.round(np.arange(0, 2.01, 0.05), 2),
    )
)
register_rule(
    Rule(
        "between",
        "mean + value * (Otsu's threshold - mean)",
        lambda maps, value: maps.mean + value * (maps.otsu - maps.mean),
        np.round(np.arange(-1, 1.51, 0.05), 2),
    )
)


def normalize_map(scores: NDArray) -> NDArray[np.float64]:
    """Min-max to [0, 1]; a constant map, or one with a value that is not finite, becomes zeros."""
    low, high = scores.min(), scores.max()
    # NaN and infinity both end up in the range, and one comparison refuses them and the constant map.
    with np.errstate(invalid="ignore"):
        if not 0 < high - low < np.inf:
            return np.zeros(scores.shape)
    shifted = scores - low
    return shifted / shifted.max()


def to_uint8(scores: NDArray) -> NDArray[np.uint8]:
    """Turn a map in [0, 1] into whole levels 0 ... 255, cut and not rounded."""
    return (scores * (LEVELS - 1)).astype(np.uint8)


def map_statistics(scores: NDArray[np.float64]) -> MapStatistics:
    """Measure an (h, w) map in [0, 1]."""
    otsu = cv2.threshold(to_uint8(scores), 0, LEVELS - 1, cv2.THRESH_OTSU)[0]
    return MapStatistics(float(scores.mean()), float(scores.std()), otsu / (LEVELS - 1))


def cut_levels(rule: str, value: Numbers, maps: MapStatistics) -> NDArray[np.int64]:
    """Return the levels of 0 ... 254 at which a rule cuts maps: cut, not rounded."""
    shares = np.asarray(get_rule(rule).cut(maps, value), dtype=np.float64)
    return np.clip(shares * (LEVELS - 1), 0, CUTS - 1).astype(np.int64)
