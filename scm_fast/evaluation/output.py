"""What an evaluation leaves behind: a table on screen, metrics.json, and predictions as csv and COCO json."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

import scm_fast

from ..data import LocalizationDataset
from .boxes import scale_to_image
from .evaluation import Evaluation
from .protocols import METRIC_NAMES, Result
from .runner import Predictor, Run


def describe(predictor: Predictor, checkpoint: Path, data: str, split: str) -> dict[str, Any]:
    """On what and with what an evaluation was made; `about` of the functions that write it."""
    config = predictor.model.config
    return {
        "checkpoint": str(checkpoint),
        "backbone": config.backbone,
        "method": config.method,
        "data": data,
        "split": split,
        "strategy": str(predictor.strategy),
        "amp": None if predictor.amp is None else str(predictor.amp).removeprefix("torch."),
        "versions": {
            "scm_fast": scm_fast.__version__,
            "torch": torch.__version__,
            "opencv": cv2.__version__,
        },
    }


def write_all(folder: Path, result: Result, run: Run, about: dict[str, Any]) -> None:
    """metrics.json, predictions.csv and predictions.coco.json in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    names = run.dataset.class_names
    rows = list(predictions(run.evaluation, result, run.dataset))
    write_metrics(folder / "metrics.json", result, run, about)
    write_csv(folder / "predictions.csv", rows, names)
    write_coco(folder / "predictions.coco.json", rows, names)


def summary(result: Result, run: Run, folder: Path) -> str:
    """What a person wants to read: the table, images that do not count, and where the results are."""
    lines = [metrics_table(result)]
    without = len(run.evaluation) - int(run.evaluation.has_boxes.sum())
    if without:
        lines.append(f"{without} images have no box and count for classification only")
    if run.left_out:
        lines.append(f"left out {len(run.left_out)} images:")
        lines.extend(f"  {problem}" for problem in run.left_out)
    lines.append(f"{len(run.evaluation)} images, {run.images_per_second:.1f} a second; results in {folder}")
    return "\n".join(lines)


def metrics_table(result: Result) -> str:
    """The metrics with their thresholds beside the baselines, the rule, and the error kinds."""
    baselines = list(result.baselines)
    rows = [("", "result", "threshold", *baselines)]
    for name, metric in result.metrics.items():
        threshold = "" if metric.threshold is None else f"{metric.threshold:.3f}"
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
        lines.append(f"\nprotocol {result.protocol}; threshold {result.rule}")
    if result.errors:
        kinds = ", ".join(f"{kind.replace('_', '-')} {share:.1f}" for kind, share in result.errors.items())
        lines.append(f"images in percent: {kinds}")
    return "\n".join(lines)


def write_metrics(path: Path, result: Result, run: Run, about: dict[str, Any]) -> None:
    """Everything that was measured, as JSON; `about` says on what and with what."""
    evaluation = run.evaluation
    content = {
        **about,
        "protocol": result.protocol,
        "threshold_rule": result.rule,
        "threshold": result.threshold,
        "images": len(evaluation),
        "images_with_boxes": int(evaluation.has_boxes.sum()),
        "images_per_second": run.images_per_second,
        "left_out": [{"image": problem.record_id, "problem": str(problem)} for problem in run.left_out],
        "metrics": {
            name: {"value": metric.value, "threshold": metric.threshold}
            for name, metric in result.metrics.items()
        },
        "errors": result.errors,
        "baselines": result.baselines,
        "curves": {
            "threshold": [round(float(t), 6) for t in evaluation.thresholds],
            **{name: [round(float(v), 4) for v in curve] for name, curve in evaluation.curves.items()},
        },
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


@dataclass(frozen=True)
class Prediction:
    """One image's outcome; boxes in pixels of the original image."""

    index: int  # in the data set
    image: str
    size: tuple[int, int]
    label: int
    top_classes: list[int]
    top_scores: list[float]
    box: list[float] | None  # of the best class; None if the protocol chose no threshold
    true_class_box: list[float] | None
    iou: float | None  # of `box`; None for an image without ground truth
    true_class_iou: float | None
    error: str | None  # kind, see `breakdown`


def predictions(evaluation: Evaluation, result: Result, dataset: LocalizationDataset) -> Iterator[Prediction]:
    """Every image in the order of the data set, with the boxes at the result's threshold."""
    records = evaluation.records
    count = len(records)
    kinds: list[str | None] = [None] * count
    boxes: list[list[Any]] = [[None] * count, [None] * count]
    ious = [[np.nan] * count, [np.nan] * count]
    if result.threshold is not None:
        true_class, best_class = evaluation.boxes_at(result.threshold)
        sizes = records.image_size
        boxes = [
            [scale_to_image(b, s, evaluation.size).tolist() for b, s in zip(part, sizes, strict=True)]
            for part in (true_class, best_class)
        ]
        ious = [evaluation.iou(part).tolist() for part in (true_class, best_class)]
        kinds = evaluation.error_kinds(result.threshold)
    for row in range(count):
        index = int(records.index[row])
        known = records.top_class[row] >= 0
        yield Prediction(
            index=index,
            image=dataset.records[index].id,
            size=tuple(records.image_size[row].tolist()),
            label=int(records.label[row]),
            top_classes=records.top_class[row][known].tolist(),
            top_scores=records.top_score[row][known].tolist(),
            box=boxes[1][row],
            true_class_box=boxes[0][row],
            iou=None if np.isnan(ious[1][row]) else ious[1][row],
            true_class_iou=None if np.isnan(ious[0][row]) else ious[0][row],
            error=kinds[row],
        )


def write_csv(path: Path, rows: list[Prediction], class_names: list[str]) -> None:
    """One line an image; boxes of the best class and of the ground-truth class."""
    corners = ("x0", "y0", "x1", "y1")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                *("image", "label", "label_name", "predicted", "predicted_name", "score", "top5"),
                *(*corners, "iou", *(f"true_class_{c}" for c in corners), "true_class_iou", "error"),
            ]
        )
        for row in rows:
            best = row.top_classes[0]
            writer.writerow(
                [
                    *(row.image, row.label, class_names[row.label], best, class_names[best]),
                    *(f"{row.top_scores[0]:.6f}", " ".join(map(str, row.top_classes))),
                    *(*_rounded(row.box), _iou(row.iou)),
                    *(*_rounded(row.true_class_box), _iou(row.true_class_iou), row.error or ""),
                ]
            )


def write_coco(path: Path, rows: list[Prediction], class_names: list[str]) -> None:
    """The best class's boxes as a COCO data set; each annotation also has a score."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, row in enumerate(rows, 1):
        images.append({"id": number, "file_name": row.image, "width": row.size[0], "height": row.size[1]})
        if row.box is not None:
            x0, y0, x1, y1 = row.box
            bbox = [round(value, 2) for value in (x0, y0, x1 - x0, y1 - y0)]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": row.top_classes[0],
                    "bbox": bbox,
                    "area": round(bbox[2] * bbox[3], 2),
                    "iscrowd": 0,
                    "score": round(row.top_scores[0], 6),
                }
            )
    categories = [{"id": label, "name": name} for label, name in enumerate(class_names)]
    content = {"images": images, "categories": categories, "annotations": annotations}
    path.write_text(json.dumps(content) + "\n")


def _rounded(box: list[float] | None) -> list[str]:
    return [""] * 4 if box is None else [f"{value:.2f}" for value in box]


def _iou(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
