"""One self-contained HTML file: figures beside baselines and published rows, charts, and a gallery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from ..output import predictions
from ..protocols import METRIC_NAMES, Result
from ..runner import Predictor, Run
from . import charts
from .gallery import build_gallery
from .published import ROWS, PublishedRow

CURVES = {
    "gt_known": "GT-Known",
    "top1_loc": "Top-1 localisation",
    "top5_loc": "Top-5 localisation",
    "every_box@0.3": "any box, IoU 0.3",
    "every_box@0.5": "any box, IoU 0.5",
    "every_box@0.7": "any box, IoU 0.7",
}
MOST_POINTS = 256  # of a curve; more cannot be seen


def write_report(path: Path, result: Result, run: Run, predictor: Predictor, about: dict[str, Any]) -> None:
    """Write report.html; nothing in it is loaded from elsewhere."""
    rows = list(predictions(run.evaluation, result, run.dataset))
    cases = build_gallery(rows, run.dataset, predictor)
    shown_classes = sorted({case.prediction.label for case in cases})
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__name__, ""), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    html = environment.get_template("template.html").render(
        about=about,
        result=result,
        run=run,
        images=len(run.evaluation),
        metric_names=METRIC_NAMES,
        published=[_this_model(about, result), *_published(about["data"], run)],
        charts=_charts(result, run),
        cases=cases,
        class_names=run.dataset.class_names,
        shown_classes=shown_classes,
    )
    path.write_text(html, encoding="utf-8")


def _this_model(about: dict[str, Any], result: Result) -> PublishedRow:
    """The result as a row of the table of published ones."""
    names = ("top1_loc", "top5_loc", "gt_known", "max_box_acc", "max_box_acc_v2")
    return PublishedRow(
        data=f"{Path(about['data']).name} {about['split']}",
        method=f"this model ({about['method']})",
        backbone=about["backbone"],
        protocol=f"{result.protocol}: threshold {result.rule}",
        **{name: result.metrics[name].value if name in result.metrics else None for name in names},
    )


def _published(data: str, run: Run) -> list[Any]:
    """The published rows of the same data set; all of them if it is neither CUB nor ILSVRC."""
    name = {"cub": "CUB", "ilsvrc": "ILSVRC"}.get(run.dataset.layout)
    for candidate in ("CUB", "ILSVRC"):
        if name is None and candidate.lower() in data.lower():
            name = candidate
    return [row for row in ROWS if name in (None, row.data)]


def _charts(result: Result, run: Run) -> dict[str, str]:
    """Title -> SVG. Empty without ground-truth boxes."""
    evaluation = run.evaluation
    if result.threshold is None or not evaluation.curves:
        return {}
    stride = -(-len(evaluation.thresholds) // MOST_POINTS)
    curves = {title: evaluation.curves[name][::stride].tolist() for name, title in CURVES.items()}
    iou = evaluation.iou(evaluation.boxes_at(result.threshold)[0])[evaluation.has_boxes].tolist()
    return {
        "Percent of images by threshold": charts.line_chart(
            evaluation.thresholds[::stride].tolist(), curves, "threshold", result.threshold
        ),
        "Error kinds": charts.bar_chart(
            {kind.replace("_", "-"): share for kind, share in result.errors.items()}
        ),
        "Percent of images by IoU (ground-truth class's map)": charts.histogram(iou, 20, "IoU", 0.5),
    }
