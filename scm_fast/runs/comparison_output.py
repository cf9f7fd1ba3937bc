"""A comparison as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from .comparison import Comparison, Group, Row, Summary, differences, doubts

VALIDATION_HEADINGS = {
    "top1_cls": "Top-1 cls",
    "top1_loc": "Top-1 loc",
    "gt_known": "GT-Known",
    "max_box_acc_v2": "MaxBoxAccV2",
    "threshold": "threshold",
}
TEST_HEADINGS = {
    "top1_cls": "Top-1 cls",
    "top1_loc": "Top-1 loc",
    "gt_known": "GT-Known",
    "unboxed": "unboxed",
    "max_box_acc": "MaxBoxAcc",
    "max_box_acc_v2": "MaxBoxAccV2",
    "threshold": "threshold",
    "seconds_per_image": "s/image",
}
DIGITS = {"threshold": 3, "seconds_per_image": 3}  # of others one
# For Top-1 localisation a fixed box also depends on the run's classification.
BASELINE_METRICS = ("gt_known", "max_box_acc_v2")


def comparison_text(comparison: Comparison) -> str:
    """The tables of the test split and of the best validation epochs, the differences and the doubts."""
    groups = comparison.groups
    parts = [_test_title(comparison) + "\n\n" + table(_test_rows(comparison))]
    if groups:
        parts.append(_validation_title(groups) + "\n\n" + table(_validation_rows(groups)))
    differing = differences(groups)
    if differing:
        rows = [["", *(group.name for group in groups)]]
        rows += [[name, *map(_plain, values)] for name, values in differing.items()]
        parts.append("configuration, where it differs\n\n" + table(rows, align="<"))
    elif len(comparison.runs) > 1:
        parts.append("the configurations are the same")
    if any(len(group.runs) > 1 for group in groups):
        parts.append("± is the standard deviation over the runs that only their seed tells apart")
    warnings = [f"warning: {sentence}" for sentence in doubts(comparison)]
    return "\n\n".join([*parts, "\n".join(warnings)] if warnings else parts)


def _test_title(comparison: Comparison) -> str:
    splits = [group.config.test_split for group in comparison.groups]
    splits += [row.evaluated.evaluation["split"] for row in comparison.rows]
    what = ["the model that was kept"] if comparison.groups else []
    what += ["the models of evaluations"] if comparison.rows else []
    return f"test split ({', '.join(dict.fromkeys(splits))}), {' and '.join(what)}"


def _validation_title(groups: Sequence[Group]) -> str:
    splits = dict.fromkeys(group.config.validation_name for group in groups)
    return f"validation split ({', '.join(splits)}), the epoch in which it was best"


def _test_rows(comparison: Comparison) -> list[list[str]]:
    rows = [["", "method", "preset", "backbone", "seed", "epochs", *TEST_HEADINGS.values(), "images/s"]]
    for group in comparison.groups:
        config = group.config
        seeds = ", ".join(str(run.config.seed) for run in group.runs)
        rows.append(
            [
                *(group.name, config.method, config.preset, config.backbone, seeds, group.progress),
                *_cells(TEST_HEADINGS, group.figures["test"], group.threshold_rules["test"], len(group.runs)),
                _cell(group.images_per_second, len(group.runs), 1),
            ]
        )
    for row in comparison.rows:
        figures = _cells(TEST_HEADINGS, row.test.figures, row.test.threshold_rules, 1)
        backbone = row.evaluated.evaluation["backbone"]
        rows.append([row.name, row.evaluated.method, "", backbone, "", "", *figures, ""])
    # One row for all that were tested on the same images.
    seen: dict[tuple[Any, ...], list[str]] = {}
    tested: list[Group | Row] = [*comparison.groups, *comparison.rows]
    for part in tested:
        for kind, scores in part.test.baselines.items():
            seen.setdefault((kind, *(scores.get(name) for name in BASELINE_METRICS)), []).append(part.name)
    for (kind, *values), names in seen.items():
        shared = len({key[1:] for key in seen if key[0] == kind}) == 1
        cells = dict(zip(BASELINE_METRICS, values, strict=True))
        shown = ["" if cells.get(name) is None else f"{cells[name]:.1f}" for name in TEST_HEADINGS]
        rows.append([kind if shared else f"{kind} ({'; '.join(names)})", *[""] * 5, *shown, ""])
    return rows


def _validation_rows(groups: Sequence[Group]) -> list[list[str]]:
    rows = [["", "epoch", *VALIDATION_HEADINGS.values()]]
    for group in groups:
        figures, count = group.figures["validation"], len(group.runs)
        cells = _cells(VALIDATION_HEADINGS, figures, group.threshold_rules["validation"], count)
        rows.append([group.name, _cell(figures["epoch"], count, 0), *cells])
    return rows


def _cells(
    headings: Iterable[str], figures: Mapping[str, Summary | None], rules: Sequence[str], count: int
) -> list[str]:
    """The figures of `count` models under the headings."""
    cells = {name: _cell(figures[name], count, DIGITS.get(name, 1)) for name in headings}
    # A threshold is named with its rule; where the rules differ, there is no mean.
    cells["threshold"] = ", ".join(rules) if len(rules) > 1 else " ".join([*rules, cells["threshold"]])
    return list(cells.values())


def _cell(figure: Summary | None, runs: int, digits: int) -> str:
    """Mean ± deviation; the number of runs where it is not all of them."""
    if figure is None:
        return "-"
    spread = "" if figure.deviation is None else f" ± {figure.deviation:.{max(digits, 1)}f}"
    some = "" if figure.count == runs else f" (of {figure.count})"
    return f"{figure.mean:.{digits if not spread else max(digits, 1)}f}{spread}{some}"


def _plain(value: Any) -> str:
    """Write a value as the configuration file would, on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=1000).splitlines()[0]


def table(rows: Sequence[Sequence[str]], align: str = ">") -> str:
    """Columns under the headings of the first row, the first one to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [f"{cell:{align}{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """The same for programs."""

    def plain(figures: Mapping[str, Summary | None]) -> dict[str, Any]:
        return {name: None if figure is None else figure.as_dict() for name, figure in figures.items()}

    return {
        "groups": [
            {
                "name": group.name,
                "method": group.config.method,
                "preset": group.config.preset,
                "backbone": group.config.backbone,
                "epochs": group.config.epochs,
                "protocol": group.config.protocol,
                "runs": [
                    {
                        "folder": str(run.path),
                        "seed": run.config.seed,
                        "epochs_done": len(run.epochs),
                        "finished": run.evaluation is not None,
                        "test": None if run.evaluation is None else run.evaluation["metrics"],
                        "validation": run.best_epoch,
                    }
                    for run in group.runs
                ],
                **{kind: plain(figures) for kind, figures in group.figures.items()},
                "threshold_rules": group.threshold_rules,
                **plain({"images_per_second": group.images_per_second}),
                "baselines": group.test.baselines,
            }
            for group in comparison.groups
        ],
        "evaluations": [
            {
                "name": row.name,
                "folder": str(row.evaluated.path),
                "method": row.evaluated.method,
                "backbone": row.evaluated.evaluation["backbone"],
                "protocol": row.evaluated.evaluation["protocol"],
                "test": {
                    name: None if figure is None else figure.mean for name, figure in row.test.figures.items()
                },
                "threshold_rule": row.evaluated.evaluation["threshold_rule"],
                "baselines": row.test.baselines,
            }
            for row in comparison.rows
        ],
        "differences": differences(comparison.groups),
        "warnings": doubts(comparison),
    }
