"""What an evaluation leaves behind: metrics, predictions and a report as files, and a table on screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..files import replacing
from ..formats import FoundBox, corner_columns, write_coco, write_csv
from .protocols import METRIC_NAMES, Result
from .report import write_report
from .split_result import ImageResult, SplitResult

METRICS_FILE = "metrics.json"


def write_results(folder: Path, done: SplitResult) -> None:
    """Everything about an evaluation, in `folder`. Where there is a metrics.json, the rest is there too."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / METRICS_FILE).unlink(missing_ok=True)
    names = done.dataset.class_names
    write_csv(folder / "predictions.csv", [_csv_row(image, names) for image in done.images])
    found = (FoundBox(i.name, i.size, i.top_classes[0], i.top_scores[0], i.box) for i in done.images)
    write_coco(folder / "predictions.coco.json", found, names)
    if done.maps is not None:
        write_report(folder / "report.html", done)
    with replacing(folder / METRICS_FILE) as partial:
        partial.write_text(json.dumps(metrics_content(done), indent=1) + "\n")


def metrics_content(done: SplitResult) -> dict[str, Any]:
    """Everything that was measured, and with what, as metrics.json has it."""
    metrics, result, threshold = done.metrics, done.result, done.result.threshold
    return {
        **done.about,
        "protocol": result.protocol,
        "threshold": None if threshold is None else threshold.value,
        "threshold_rule": None if threshold is None else threshold.rule,
        "threshold_choice": result.choice,
        "interpolation": metrics.cuts.interpolation,
        "images": len(metrics),
        "images_with_boxes": int(metrics.has_boxes.sum()),
        "images_per_second": done.images_per_second,
        "left_out": [{"image": problem.record_id, "problem": str(problem)} for problem in done.left_out],
        "metrics": {
            name: {"value": metric.value, "threshold": metric.threshold}
            for name, metric in result.metrics.items()
        },
        "errors": result.errors,
        "baselines": result.baselines,
        "curves": {
            "threshold": [round(float(t), 6) for t in metrics.thresholds],
            **{name: [round(float(v), 4) for v in curve] for name, curve in metrics.curves.items()},
        },
    }


def _csv_row(image: ImageResult, class_names: list[str]) -> dict[str, object]:
    """Boxes of the best class and of the ground-truth class."""
    best = image.top_classes[0]
    return {
        "image": image.name,
        "label": image.label,
        "label_name": class_names[image.label],
        "predicted": best,
        "predicted_name": class_names[best],
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
    """What a person wants to read: the table, images that do not count, and where the results are."""
    lines = [metrics_table(done.result)]
    without = len(done.metrics) - int(done.metrics.has_boxes.sum())
    if without:
        lines.append(f"{without} images have no box and count for classification only")
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
        lines.append(f"\nprotocol {result.protocol}; threshold {result.choice}")
    if result.errors:
        kinds = ", ".join(f"{kind.replace('_', '-')} {share:.1f}" for kind, share in result.errors.items())
        lines.append(f"images in percent: {kinds}")
    return "\n".join(lines)
