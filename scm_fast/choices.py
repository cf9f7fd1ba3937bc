"""What some options may be, found out when it is asked for: the modules that know it import torch."""

from __future__ import annotations

from collections.abc import Iterable


def layouts() -> Iterable[str]:
    from .data.layouts import layout_names

    return "auto", *layout_names()


def takers(option: str) -> str:
    """The layouts that take `images` or `boxes`, in words."""
    from .data import opening

    return ", ".join(opening.takers(option))


def methods() -> Iterable[str]:
    from .models.methods import method_names

    return method_names()


def maps() -> Iterable[str]:
    from .models.maps import map_names

    return map_names()


def presets() -> Iterable[str]:
    from .spatial_calibration import PRESETS

    return PRESETS


def backends() -> Iterable[str]:
    from .backends import BACKENDS

    return "auto", *BACKENDS


def precisions() -> Iterable[str]:
    from .devices import AMP_DTYPES

    return "auto", *AMP_DTYPES


def protocols() -> Iterable[str]:
    from .evaluation.protocols import PROTOCOLS

    return PROTOCOLS


def heldout_rules() -> Iterable[str]:
    from .threshold import rules_to_choose

    return rules_to_choose()


def metrics() -> Iterable[str]:
    from .evaluation.protocols import METRIC_NAMES

    return METRIC_NAMES
