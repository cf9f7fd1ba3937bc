"""The protocols by which a threshold is chosen, and so what a figure means. A result says which one it is.

| name        | threshold                                      | to be used for                          |
|-------------|------------------------------------------------|-----------------------------------------|
| `heldout`   | best GT-Known on a validation split            | a fair figure; the default              |
| `fixed`     | given                                          | a deployed model, TS-CAM's table        |
| `maxbox`    | best GT-Known on the test split itself         | the reference evaluator's MaxBoxAcc, V2 |
| `published` | on the test split, another one for each metric | the SCM paper's table                   |

`published` also resizes maps bilinearly and tries 100 thresholds, and what it calls GT-Known takes the map of
the best class. Ask `settings(name)` for the `Evaluator` arguments that a protocol needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError
from .breakdown import breakdown
from .evaluation import Evaluation, percent

HELDOUT_NEEDS_BOXES = (
    "protocol heldout needs boxes in the validation and the test split; without, protocol maxbox gives "
    "classification and, with masks, PxAP, and protocol fixed writes boxes at a given threshold"
)

# Every metric, in the order of tables, with the name that people know it by.
METRIC_NAMES = {
    "top1_cls": "Top-1 classification",
    "top5_cls": "Top-5 classification",
    "top1_loc": "Top-1 localisation",
    "top5_loc": "Top-5 localisation",
    "gt_known": "GT-Known",
    "gt_known_published": "GT-Known, best class's map",
    "max_box_acc": "MaxBoxAcc",
    "max_box_acc_v2": "MaxBoxAccV2",
    "px_ap": "PxAP",
    "mean_iou": "mean IoU",
}


@dataclass(frozen=True)
class Metric:
    value: float  # percent
    threshold: float | None = None  # at which it was read; None if it has none, or one for each IoU


@dataclass(frozen=True)
class Result:
    """The figures of one split under one protocol."""

    protocol: str
    rule: str  # how the threshold was chosen, in words
    threshold: float | None  # of the boxes that are written, shown and broken down; None without boxes
    metrics: dict[str, Metric]
    errors: dict[str, float] = field(default_factory=dict)  # percent of each kind
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)


def fixed(test: Evaluation, threshold: float) -> Result:
    """Every metric at the threshold that the caller gives."""
    return _at_threshold(test, "fixed", threshold, f"fixed at {threshold:g}")


def heldout(test: Evaluation, validation: Evaluation) -> Result:
    """The threshold of the best GT-Known on the validation split, applied to the test split."""
    if not (validation.has_boxes.any() and test.has_boxes.any()):
        raise InputError(HELDOUT_NEEDS_BOXES)
    _, threshold = validation.best("gt_known")
    return _at_threshold(
        test, "heldout", threshold, f"{threshold:g}, the best GT-Known on {len(validation)} held-out images"
    )


def maxbox(test: Evaluation) -> Result:
    """The threshold of the best GT-Known on the test split: the reference evaluator's MaxBoxAcc."""
    if not test.has_boxes.any():
        return _at_threshold(test, "maxbox", None, "none: no boxes to choose it by")
    _, threshold = test.max_box_acc
    return _at_threshold(
        test, "maxbox", threshold, f"{threshold:g}, the best GT-Known on the test split itself"
    )


def published(test: Evaluation) -> Result:
    """Each metric at its own best threshold on the test split, as the paper's code printed its table."""
    metrics = {name: Metric(value) for name, value in test.classification.items()}
    if not test.has_boxes.any():
        return Result("published", "none: no boxes to choose it by", None, metrics)
    for name in ("top1_loc", "top5_loc", "gt_known", "gt_known_published"):
        metrics[name] = Metric(*test.best(name))
    _, threshold = test.best("gt_known_published")
    return _with_boxes(
        test, "published", "each metric's own best on the test split itself", threshold, metrics
    )


PROTOCOLS: dict[str, Callable[..., Result]] = {
    "heldout": heldout,
    "fixed": fixed,
    "maxbox": maxbox,
    "published": published,
}


def settings(protocol: str) -> dict[str, Any]:
    """Arguments of `Evaluator` that the protocol prescribes; the others are the caller's."""
    if protocol not in PROTOCOLS:
        raise InputError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")
    return {"step": 0.01, "interpolation": "linear"} if protocol == "published" else {}


def _at_threshold(test: Evaluation, protocol: str, threshold: float | None, rule: str) -> Result:
    """Threshold metrics at one threshold, and beside them those that choose their own."""
    metrics = {name: Metric(value) for name, value in test.classification.items()}
    if test.px_ap is not None:
        metrics["px_ap"] = Metric(test.px_ap)
    if threshold is None or not test.has_boxes.any():
        return Result(protocol, rule, threshold, metrics)
    metrics |= {name: Metric(value, threshold) for name, value in test.at(threshold).items()}
    metrics["max_box_acc"] = Metric(*test.max_box_acc)
    metrics["max_box_acc_v2"] = Metric(test.max_box_acc_v2)
    return _with_boxes(test, protocol, rule, threshold, metrics)


def _with_boxes(
    test: Evaluation, protocol: str, rule: str, threshold: float, metrics: dict[str, Metric]
) -> Result:
    """The parts of a result that are read from the boxes at one threshold."""
    iou = test.iou(test.boxes_at(threshold)[0])[test.has_boxes]
    metrics["mean_iou"] = Metric(percent(iou), threshold)
    ordered = {name: metrics[name] for name in METRIC_NAMES if name in metrics}
    errors = breakdown(test.error_kinds(threshold))
    return Result(protocol, rule, threshold, ordered, errors, test.baselines())
