"""The threshold that cuts a map into object and background, and the choice of it.

| module       | what                                                                            |
|--------------|---------------------------------------------------------------------------------|
| `rules.py`   | the rules that make a level of a value: a new rule is one `register_rule` there |
| `value.py`   | `Threshold`: a value with its rule, and how it is written and read              |
| `boxed.py`   | the choice of a threshold by boxes                                              |
| `unboxed.py` | the choice by images alone                                                      |
| `choice.py`  | which of them decides: what is given, the checkpoint, boxes, images, a default  |
"""

from .boxed import FEW_WITH_BOXES, best_value, choose_boxed
from .choice import Choice, protocol_to_use, threshold_to_use
from .rules import (
    BEST,
    CUTS,
    MapStatistics,
    Rule,
    check_rule,
    cut_levels,
    get_rule,
    map_statistics,
    normalize_map,
    register_rule,
    rule_names,
    rules_to_choose,
    to_uint8,
)
from .unboxed import FEWEST_IMAGES, choose_unboxed, no_separation, token_separation
from .value import DEFAULT_THRESHOLD, INTERPOLATIONS, Threshold, make_threshold, threshold_from_json

__all__ = [
    "BEST",
    "CUTS",
    "DEFAULT_THRESHOLD",
    "FEWEST_IMAGES",
    "FEW_WITH_BOXES",
    "INTERPOLATIONS",
    "Choice",
    "MapStatistics",
    "Rule",
    "Threshold",
    "best_value",
    "check_rule",
    "choose_boxed",
    "choose_unboxed",
    "cut_levels",
    "get_rule",
    "make_threshold",
    "map_statistics",
    "no_separation",
    "normalize_map",
    "protocol_to_use",
    "register_rule",
    "rule_names",
    "rules_to_choose",
    "threshold_from_json",
    "threshold_to_use",
    "to_uint8",
    "token_separation",
]
