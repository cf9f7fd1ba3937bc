"""The choice of a threshold. This is the only place that says what stands in for what.

An evaluation follows its protocol; `heldout` becomes `unboxed` where no held-out image has boxes. A model in use
follows what the user gives, else its checkpoint; else images choose, and of too few images it is the default.
"""

from __future__ import annotations

from typing import NamedTuple

from .value import DEFAULT_THRESHOLD, Threshold, make_threshold

PRESCRIBED = "where the method cuts its own map"


class Choice(NamedTuple):
    """A threshold, and how it was chosen, in words."""

    threshold: Threshold
    reason: str
    is_open: bool = False  # whether images may choose another: nobody has given one


def protocol_to_use(protocol: str, held_out_boxes: bool) -> str:
    """Return the protocol by which an evaluation chooses its threshold.

    held_out_boxes: whether any held-out image has boxes.
    """
    return "unboxed" if protocol == "heldout" and not held_out_boxes else protocol


def threshold_to_use(
    stored: Threshold | None,
    given: float | str | Threshold | None = None,
    prescribed: Threshold | None = None,
) -> Choice:
    """Return what is given, else what the checkpoint has stored, else the method's own threshold or the default.

    given: a number or a text is for maps that are resized as the checkpoint's threshold wants them.
    prescribed: where the method cuts its own map, if it says so.
    """
    own = stored or DEFAULT_THRESHOLD
    if given is not None:
        return Choice(make_threshold(given, own.interpolation), "given")
    if stored is not None:
        return Choice(stored, "the checkpoint's")
    if prescribed is not None:
        return Choice(prescribed, PRESCRIBED)
    return Choice(DEFAULT_THRESHOLD, "the default", is_open=True)
