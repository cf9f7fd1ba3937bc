"""`SplitResult`: what an evaluation gives, image by image; as files, and as a table on screen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data import LocalizationDataset, Problem
from ..files import replacing
from ..formats import FoundBoxes, corner_columns, write_coco, write_csv
from ..models.methods import get_method
from .boxes import scale_to_image
from .metrics import SplitMetrics
from .protocols import METRIC_NAMES, Result

METRICS_FILE = "metrics.json"


class ImageMaps(NamedTuple):
    """The best class's maps of an image on the token grid, each (h, w)."""

    attention: NDArray[np.float32]  # F0
    semantic: NDArray[np.float32] | None  # S0; None for a model without
    activation: NDArray[np.float32]  # that the box is cut from


@dataclass(frozen=True)
class ImageResult:
    """One image's outcome; boxes in pixels of the original image."""

    index: int  # in the data set
    name: str
    size: tuple[int, int]
    label: int
    top_classes: list[int]
    top_scores: list[float]
    box: list[float] | None  # of the best class; None if the protocol chose no threshold
    true_class_box: list[float] | None
    iou: float | None  # of `box`; None for an image without ground truth
    true_class_iou: float | None
    error: str | None  # kind, see `breakdown`


@dataclass
class SplitResult:
    """A split that was evaluated; the same in every process.

    predicted_names: of the classes that the model knows, which are not the data set's if `foreign_classes`.
    timing: what an image took, and under which conditions.
    about: with what it was evaluated, for metrics.json and the report.
    unboxed: beside a result with held-out boxes the one that needs none: the price of having none.
    maps: of the images that the report shows, by their index in the data set; None if there is to be none.
    """

    dataset: LocalizationDataset
    predicted_names: list[str]
    metrics: SplitMetrics
    left_out: list[Problem]  # images that could not be used
    seconds: float
    timing: dict[str, Any]
    result: Result
    about: dict[str, Any]
    unboxed: Result | None = None
    maps: dict[int, ImageMaps] | None = None

    @property
    def title(self) -> str:
        """The method, as people call it."""
        method = self.about["method"]
        return "attention alone" if method == "cls" else get_method(method).title

    @property
    def images_per_second(self) -> float:
        return len(self.metrics) / max(self.seconds, 1e-9)

    @property
    def val_boxes_note(self) -> str:
        """Name the pseudo-boxes that stand in for the boxes of the validation split; empty if none do."""
        pseudo = self.about["val_boxes"]
        if pseudo is None:
            return ""
        return (
            f"pseudo-boxes of {pseudo['file']} stand in for the boxes of split {pseudo['split']}: "
            f"{pseudo['images_with_boxes']} of {pseudo['images']} images have one"
        )

    @property
    def classes_note(self) -> str:
        """State that the classes are the model's own; empty if they are those of the data set."""
        if not self.metrics.foreign_classes:
            return ""
        return (
            f"the model has {len(self.predicted_names)} classes of its own, which are not those of the data: "
            "each map is of the class that it finds, and no figure is about classification"
        )

    @cached_property
    def images(self) -> list[ImageResult]:
        return image_results(self.dataset, self.metrics, self.result)


def image_results(dataset: LocalizationDataset, metrics: SplitMetrics, result: Result) -> list[ImageResult]:
    """Every image in the order of the data set, with the boxes at the result's threshold."""
    table = metrics.table
    kinds: list[str | None] = [None] * len(table)
    boxes: list[list] = [[None] * len(table)] * 2
    ious: list[list] = [[None] * len(table)] * 2
    if result.threshold is not None:
        both = metrics.boxes_at(result.threshold)  # of the true and of the best class
        boxes = [
            [
                scale_to_image(box, size, metrics.cuts.size).tolist()
                for box, size in zip(part, table.image_size, strict=True)
            ]
            for part in both
        ]
        ious = [[None if np.isnan(iou) else iou for iou in metrics.iou(part).tolist()] for part in both]
        kinds = metrics.error_kinds(result.threshold)
    rows = []
    for row, index in enumerate(table.index.tolist()):
        known = table.top_class[row] >= 0
        rows.append(
            ImageResult(
                index=index,
                name=dataset.records[index].id,
                size=tuple(table.image_size[row].tolist()),
                label=int(table.label[row]),
                top_classes=table.top_class[row][known].tolist(),
                top_scores=table.top_score[row][known].tolist(),
                box=boxes[1][row],
                true_class_box=boxes[0][row],
                iou=ious[1][row],
                true_class_iou=ious[0][row],
                error=kinds[row],
            )
        )
    return rows


def write_results(folder: Path, done: SplitResult) -> None:
    """Everything about an evaluation, in `folder`. Where there is a metrics.json, the rest is there too."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / METRICS_FILE).unlink(missing_ok=True)
    rows = [_csv_row(image, done.dataset.class_names, done.predicted_names) for image in done.images]
    write_csv(folder / "predictions.csv", list(rows[0]) if rows else [], rows)
    found = [
        FoundBoxes(i.name, i.size, i.top_classes[0], [(i.box, i.top_scores[0])] if i.box else [])
        for i in done.images
    ]
    write_coco(folder / "predictions.coco.json", found, done.predicted_names)
    if done.maps is not None:
        from .report import write_report  # which imports this module

        write_report(folder / "report.html", done)
    with replacing(folder / METRICS_FILE) as partial:
        partial.write_text(json.dumps(metrics_content(done), indent=1) + "\n")


def metrics_content(done: SplitResult) -> dict[str, Any]:
    """Everything that was measured, and with what, as metrics.json has it."""
    metrics, result = done.metrics, done.result
    return {
        **done.about,
        **_choice_content(result),
        "interpolation": metrics.cuts.interpolation,
        "images": len(metrics),
        "images_with_boxes": int(metrics.has_boxes.sum()),
        "images_per_second": done.images_per_second,
        "timing": done.timing,
        "left_out": [{"image": problem.record_id, "problem": str(problem)} for problem in done.left_out],
        "notes": done.dataset.notes,
        "metrics": _metrics_content(result),
        "unboxed": None
        if done.unboxed is None
        else {**_choice_content(done.unboxed), "metrics": _metrics_content(done.unboxed)},
        "errors": result.errors,
        "baselines": result.baselines,
        "curves": {
            "threshold": [round(float(t), 6) for t in metrics.thresholds],
            **_rounded_curves(metrics.curves),
        },
        "rule_curves": {
            rule: {"value": metrics.values(rule).tolist(), **_rounded_curves(curves)}
            for rule, curves in metrics.rule_curves.items()
            if rule != "global"  # those are `curves`
        },
    }


def _choice_content(result: Result) -> dict[str, Any]:
    threshold = result.threshold
    return {
        "protocol": result.protocol,
        "threshold": None if threshold is None else threshold.value,
        "threshold_rule": None if threshold is None else threshold.rule,
        "threshold_choice": result.choice,
    }


def _metrics_content(result: Result) -> dict[str, Any]:
    return {
        name: {
            "value": metric.value,
            "threshold": metric.threshold and metric.threshold.value,
            "rule": metric.threshold and metric.threshold.rule,
        }
        for name, metric in result.metrics.items()
    }


def _rounded_curves(curves: Mapping[str, NDArray]) -> dict[str, list[float]]:
    return {name: [round(float(v), 4) for v in curve] for name, curve in curves.items()}


def _csv_row(image: ImageResult, label_names: list[str], predicted_names: list[str]) -> dict[str, object]:
    """Boxes of the best class and of the ground-truth class."""
    best = image.top_classes[0]
    return {
        "image": image.name,
        "label": image.label,
        "label_name": label_names[image.label],
        "predicted": best,
        "predicted_name": predicted_names[best],
        "score": f"{image.top_scores[0]:.6f}",
        "top5": " ".join(map(str, image.top_classes)),
        **corner_columns(image.box),
        "iou": _four_digits(image.iou),
        **corner_columns(image.true_class_box, "true_class_"),
        "true_class_iou": _four_digits(image.true_class_iou),
        "error": image.error or "",
    }


def _four_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def summary(done: SplitResult, folder: Path) -> str:
    """Write what a person wants to read: the table, images that do not count, and where the results are."""
    lines = [metrics_table(done.result)]
    if done.unboxed is not None and "gt_known" in done.unboxed.metrics:
        figures = ", ".join(
            f"{METRIC_NAMES[name]} {done.unboxed.metrics[name].value:.2f}"
            for name in ("gt_known", "top1_loc")
            if name in done.unboxed.metrics
        )
        lines.append(
            f"without boxes to choose by (protocol unboxed): {figures}; threshold {done.unboxed.choice}"
        )
    without = len(done.metrics) - int(done.metrics.has_boxes.sum())
    if without:
        only = "are not judged" if done.metrics.foreign_classes else "count for classification only"
        lines.append(f"{without} images have no box and {only}")
    if done.classes_note:
        lines.append(done.classes_note)
    if done.val_boxes_note:
        lines.append(done.val_boxes_note)
    if done.left_out:
        lines.append(f"left out {len(done.left_out)} images:")
        lines.extend(f"  {problem}" for problem in done.left_out)
    speed = f"{done.images_per_second:.1f} per second"
    lines.append(f"{len(done.metrics)} images, {speed}; results in {folder}")
    return "\n".join(lines)


def metrics_table(result: Result) -> str:
    """The metrics with their thresholds beside the baselines, the protocol, and the error kinds."""
    baselines = list(result.baselines)
    rows = [("", "result", "threshold", *baselines)]
    for name, metric in result.metrics.items():
        threshold = "" if metric.threshold is None else metric.threshold.in_table
        others = (result.baselines[b].get(name) for b in baselines)
        rows.append(
            (
                METRIC_NAMES[name],
                f"{metric.value:.2f}",
                threshold,
                *("" if value is None else f"{value:.2f}" for value in others),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        row[0].ljust(widths[0])
        + "".join("   " + cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    if result.threshold is None:
        lines.append("\nno threshold: there are no boxes to choose it by")
    else:
        lines.append(f"\nprotocol {result.protocol}; threshold {result.choice}")
    if result.errors:
        kinds = ", ".join(f"{kind.replace('_', '-')} {share:.1f}" for kind, share in result.errors.items())
        lines.append(f"images in percent: {kinds}")
    return "\n".join(lines)
