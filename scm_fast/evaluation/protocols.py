"""The protocols by which a threshold is chosen, and so what a figure means. A result says which one it is.

| name        | threshold                                                | to be used for                          |
|-------------|----------------------------------------------------------|-----------------------------------------|
| `heldout`   | rule and value of best GT-Known on a validation split    | a fair figure; the default              |
| `unboxed`   | chosen on the images of a validation split without boxes | what to expect where nobody drew boxes  |
| `fixed`     | given                                                    | a deployed model, TS-CAM's table        |
| `maxbox`    | best GT-Known on the evaluated images themselves         | the reference evaluator's MaxBoxAcc, V2 |
| `published` | on the evaluated images, another one for each metric     | the SCM paper's table                   |

`maxbox` and `published` know the rule `global` alone, as the field does. `published` also resizes maps
bilinearly and tries 100 thresholds, and what it calls GT-Known takes the map of the best class.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import InputError
from ..threshold import BEST, Threshold, choose_boxed, choose_unboxed
from .metrics import SplitMetrics, kind_shares, percent

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
class Maps:
    """The settings of maps that a protocol prescribes.

    interpolation: how they are resized.
    step: distance of the thresholds that are tried; None if that is the caller's choice.
    """

    interpolation: str = "cubic"
    step: float | None = None


PROTOCOLS = {
    "heldout": Maps(),
    "unboxed": Maps(),
    "fixed": Maps(),
    "maxbox": Maps(),
    "published": Maps("linear", 0.01),
}


@dataclass(frozen=True)
class Metric:
    value: float  # percent
    threshold: Threshold | None = None  # at which it was read; None if it has none, or one for each IoU


@dataclass(frozen=True)
class Result:
    """The figures of one split under one protocol."""

    protocol: str
    threshold: Threshold | None  # of the boxes that are written, shown and broken down; None without boxes
    choice: str  # how the threshold was chosen, in words
    metrics: dict[str, Metric]
    errors: dict[str, float] = field(default_factory=dict)  # percent of each kind
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)


def check_protocol(name: str) -> None:
    if name not in PROTOCOLS:
        raise InputError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {name!r}")


def result_under(
    protocol: str,
    test: SplitMetrics,
    validation: SplitMetrics | None = None,
    threshold: Threshold | None = None,
    rule: str = BEST,
) -> Result:
    """The figures of `test`; `heldout` and `unboxed` need the validation split's metrics, `fixed` a threshold."""
    check_protocol(protocol)
    if protocol == "fixed":
        assert threshold is not None
        return fixed(test, threshold)
    if protocol in ("heldout", "unboxed"):
        assert validation is not None
        return heldout(test, validation, rule) if protocol == "heldout" else unboxed(test, validation)
    return maxbox(test) if protocol == "maxbox" else published(test)


def fixed(test: SplitMetrics, threshold: Threshold) -> Result:
    """Every metric at the threshold that the caller gives."""
    return _at_threshold(test, "fixed", threshold, f"fixed at {threshold}")


def heldout(test: SplitMetrics, validation: SplitMetrics, rule: str = BEST) -> Result:
    """Rule and value of the best GT-Known on the validation split, applied to the test split.

    rule: the one to choose a value for, or `best` for any.
    """
    if not validation.has_boxes.any():
        raise InputError("protocol heldout needs boxes in the validation split")
    threshold = test.threshold(*choose_boxed(lambda name: validation.best("gt_known", name), rule))
    count = int(validation.has_boxes.sum())
    choice = f"{threshold}, the best GT-Known on {_boxes_of(validation, f'{count} held-out images')}"
    return _at_threshold(test, "heldout", threshold, choice)


def unboxed(test: SplitMetrics, validation: SplitMetrics) -> Result:
    """A threshold that the images of the validation split choose without their boxes."""
    choice = choose_unboxed(validation.table.separation, test.cuts.interpolation, test.prescribed)
    return _at_threshold(test, "unboxed", choice.threshold, f"{choice.threshold}, {choice.reason}")


def maxbox(test: SplitMetrics) -> Result:
    """The threshold of the best GT-Known on the images themselves: the reference evaluator's MaxBoxAcc."""
    if not test.has_boxes.any():
        return _at_threshold(test, "maxbox", None, "none: no boxes to choose it by")
    threshold = test.threshold(test.max_box_acc[1])
    choice = f"{threshold}, the best GT-Known on {_boxes_of(test, 'the evaluated images themselves')}"
    return _at_threshold(test, "maxbox", threshold, choice)


def published(test: SplitMetrics) -> Result:
    """Each metric at its own best threshold on the images themselves, as the paper's code printed its table."""
    metrics = {name: Metric(value) for name, value in test.classification.items()}
    if not test.has_boxes.any():
        return Result("published", None, "none: no boxes to choose it by", metrics)
    curves = test.curves
    for name in ("top1_loc", "top5_loc", "gt_known", "gt_known_published"):
        if name in curves:
            value, threshold = test.best(name)
            metrics[name] = Metric(value, test.threshold(threshold))
    of_boxes = test.threshold(test.best("gt_known_published")[1])
    choice = "each metric's own best on the evaluated images themselves"
    return _with_boxes(test, "published", of_boxes, choice, metrics)


def _boxes_of(metrics: SplitMetrics, images: str) -> str:
    """Describe what a threshold was chosen on: `images` with boxes of their own, or pseudo-boxes."""
    if metrics.pseudo_boxes is None:
        return images
    return f"{metrics.table.truth_count.sum()} pseudo-boxes of {metrics.pseudo_boxes}"


def _at_threshold(test: SplitMetrics, protocol: str, threshold: Threshold | None, choice: str) -> Result:
    """Threshold metrics at one threshold, and beside them those that choose their own."""
    metrics = {name: Metric(value) for name, value in test.classification.items()}
    if test.px_ap is not None:
        metrics["px_ap"] = Metric(test.px_ap)
    if threshold is None or not test.has_boxes.any():
        return Result(protocol, threshold, choice, metrics)
    metrics |= {name: Metric(value, threshold) for name, value in test.at(threshold).items()}
    value, of_split = test.max_box_acc
    metrics["max_box_acc"] = Metric(value, test.threshold(of_split))
    metrics["max_box_acc_v2"] = Metric(test.max_box_acc_v2)
    return _with_boxes(test, protocol, threshold, choice, metrics)


def _with_boxes(
    test: SplitMetrics, protocol: str, threshold: Threshold, choice: str, metrics: dict[str, Metric]
) -> Result:
    """The parts of a result that are read from the boxes at one threshold."""
    iou = test.iou(test.boxes_at(threshold)[0])[test.has_boxes]
    metrics["mean_iou"] = Metric(percent(iou), threshold)
    ordered = {name: metrics[name] for name in METRIC_NAMES if name in metrics}
    errors = test.meaningful(kind_shares(test.error_kinds(threshold)))
    return Result(protocol, threshold, choice, ordered, errors, test.baselines())
