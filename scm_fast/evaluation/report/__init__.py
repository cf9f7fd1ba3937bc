"""One self-contained HTML file: a gallery, figures beside baselines and published rows, and charts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jinja2

from ...files import replacing
from ..protocols import METRIC_NAMES
from ..results import SplitResult
from . import charts
from .confusion import confusion
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
CLASSES_OF = {("CUB", 200), ("ILSVRC", 1000)}  # a few classes of a data set are another one
MOST_POINTS = 256  # of a curve; more cannot be seen


def write_report(path: Path, done: SplitResult, beside: Sequence[SplitResult] = ()) -> None:
    """Write report.html; nothing in it is loaded from elsewhere.

    beside: other results on the same images, whose maps and figures stand beside those of `done`; each has the maps
        of all images (`EvaluationSettings.all_maps`).
    """
    results = [*beside, done]
    cases, table = build_gallery(results), done.metrics.table
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__name__, ""), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    html = environment.get_template("template.html").render(
        about=done.about,
        result=done.result,
        results=results,
        notes=[note for note in (done.classes_note, done.val_boxes_note) if note],
        unboxed=done.unboxed,
        left_out=done.left_out,
        images=len(done.metrics),
        metric_names=METRIC_NAMES,
        published=_published(done),
        charts=_charts(done),
        confusion=None
        if done.metrics.foreign_classes
        else confusion(table.label, table.top_class[:, 0], len(done.dataset.class_names)),
        cases=cases,
        class_names=done.dataset.class_names,
        predicted_names=done.predicted_names,
        shown_classes=sorted({case.image.label for case in cases}),
    )
    with replacing(path) as partial:
        partial.write_text(html, encoding="utf-8", errors="backslashreplace")  # names may be any bytes


def _this_model(done: SplitResult) -> PublishedRow:
    """The result as a row of the table of published ones."""
    about, result = done.about, done.result
    names = ("top1_loc", "top5_loc", "gt_known", "max_box_acc", "max_box_acc_v2")
    return PublishedRow(
        data=f"{Path(about['data']).name} {about['split']}",
        method=f"this model ({about['method']})",
        backbone=about["backbone"],
        protocol=f"{result.protocol}: threshold {result.choice}",
        **{name: result.metrics[name].value if name in result.metrics else None for name in names},
    )


def _published(done: SplitResult) -> list[PublishedRow]:
    """This model's row and those of the papers, where the data set is theirs; none elsewhere."""
    classes = len(done.dataset.class_names)
    theirs = [row for row in ROWS if (row.data, classes) in CLASSES_OF and _is_of(done, row.data)]
    return [_this_model(done), *theirs] if theirs else []


def _is_of(done: SplitResult, name: str) -> bool:
    """Return whether these are results on that data set: by its layout, or a shared layout's folder."""
    return done.dataset.layout == name.lower() or name.lower() in done.about["data"].lower()


def _charts(done: SplitResult) -> dict[str, str]:
    """Title -> SVG. Empty without ground-truth boxes."""
    metrics, threshold = done.metrics, done.result.threshold
    if threshold is None or not metrics.curves:
        return {}
    iou = [image.true_class_iou for image in done.images if image.true_class_iou is not None]
    return {
        **{
            _curves_title(rule): _rule_chart(done, rule) for rule in dict.fromkeys(("global", threshold.rule))
        },
        "Error kinds": charts.bar_chart(
            {kind.replace("_", "-"): share for kind, share in done.result.errors.items()}
        ),
        "Percent of images by IoU (ground-truth class's map)": charts.histogram(iou, 20, "IoU", 0.5),
    }


def _curves_title(rule: str) -> str:
    return f"Percent of images by {'threshold' if rule == 'global' else f'value of the rule {rule}'}"


def _rule_chart(done: SplitResult, rule: str) -> str:
    """The curves over a rule's values, with a mark at the one in use."""
    metrics, used = done.metrics, done.result.threshold
    known, values = metrics.rule_curves[rule], metrics.values(rule)
    stride = -(-len(values) // MOST_POINTS)
    return charts.line_chart(
        values[::stride].tolist(),
        {title: known[name][::stride].tolist() for name, title in CURVES.items() if name in known},
        "threshold" if rule == "global" else rule,
        used.value if used is not None and used.rule == rule else None,
        (0, 1) if rule == "global" else (float(values[0]), float(values[-1])),
    )
