"""The choice of a threshold by boxes: the rule and the value of the best GT-Known."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .rules import BEST, check_rule, rules_to_choose

FEW_WITH_BOXES = 50  # images: the best value of fewer may be far from that of others


class BestValue(NamedTuple):
    """The maximum of a curve over a rule's values."""

    figure: float  # percent
    value: float  # of the rule


def best_value(values: NDArray[np.float64], curve: NDArray[np.float64]) -> BestValue:
    """Return the maximum of a curve (V,) over a rule's values (V,).

    Of values that are equally good it is the middle one, which is likeliest to serve other images as well.
    """
    equals = np.flatnonzero(curve == curve.max())
    position = equals[len(equals) // 2]
    return BestValue(float(curve[position]), float(values[position]))


def choose_boxed(best: Callable[[str], BestValue], rule: str = BEST) -> tuple[float, str]:
    """Return the value and the rule of the best figure; of equally good rules, the one that was registered last.

    best: gives the best figure of a rule, and its value.
    rule: the one to choose a value for; `best` for any.
    """
    names = rules_to_choose()
    check_rule(rule, names)
    chosen = max(names[1:] if rule == BEST else (rule,), key=lambda name: best(name).figure)
    return best(chosen).value, chosen
