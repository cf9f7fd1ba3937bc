"""A comparison of runs as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from .comparison import METRICS, Group, Summary, differences, doubts

HEADINGS = {
    "top1_cls": "Top-1 cls",
    "top1_loc": "Top-1 loc",
    "gt_known": "GT-Known",
    "max_box_acc_v2": "MaxBoxAccV2",
    "threshold": "threshold",
}
# For Top-1 localisation a fixed box also depends on the run's classification.
BASELINE_METRICS = ("gt_known", "max_box_acc_v2")


def comparison_text(groups: Sequence[Group]) -> str:
    """The tables of the test split and of the best validation epochs, the differences and the doubts."""
    parts = [_splits(groups, "test") + "\n\n" + table(_test_rows(groups))]
    parts.append(_splits(groups, "validation") + "\n\n" + table(_validation_rows(groups)))
    differing = differences(groups)
    if differing:
        rows = [["", *(group.name for group in groups)]]
        rows += [[name, *map(_plain, values)] for name, values in differing.items()]
        parts.append("configuration, where it differs\n\n" + table(rows, align="<"))
    elif len(groups) > 1 or len(groups[0].runs) > 1:
        parts.append("the configurations are the same")
    if any(len(group.runs) > 1 for group in groups):
        parts.append("± is the standard deviation over the runs that only their seed tells apart")
    warnings = [f"warning: {sentence}" for sentence in doubts(groups)]
    return "\n\n".join([*parts, "\n".join(warnings)] if warnings else parts)


def _splits(groups: Sequence[Group], kind: str) -> str:
    names = dict.fromkeys(
        group.config.test_split if kind == "test" else group.config.validation_name for group in groups
    )
    what = "the model that was kept" if kind == "test" else "the epoch in which it was best"
    return f"{kind} split ({', '.join(names)}), {what}"


def _test_rows(groups: Sequence[Group]) -> list[list[str]]:
    rows = [["", "method", "preset", "backbone", "seed", "epochs", *HEADINGS.values(), "images/s"]]
    for group in groups:
        config = group.config
        seeds = ", ".join(str(run.config.seed) for run in group.runs)
        rows.append(
            [
                *(group.name, config.method, config.preset, config.backbone, seeds, group.progress),
                *_cells(group, "test"),
                _cell(group.images_per_second, len(group.runs), 1),
            ]
        )
    # One row for all runs that were tested on the same images.
    seen: dict[tuple[Any, ...], list[str]] = {}
    for group in groups:
        for kind, scores in group.baselines.items():
            seen.setdefault((kind, *(scores.get(name) for name in BASELINE_METRICS)), []).append(group.name)
    for (kind, *values), names in seen.items():
        shared = len({key[1:] for key in seen if key[0] == kind}) == 1
        cells = dict(zip(BASELINE_METRICS, values, strict=True))
        shown = ["" if cells.get(name) is None else f"{cells[name]:.1f}" for name in HEADINGS]
        rows.append([kind if shared else f"{kind} ({'; '.join(names)})", *[""] * 5, *shown, ""])
    return rows


def _validation_rows(groups: Sequence[Group]) -> list[list[str]]:
    rows = [["", "epoch", *HEADINGS.values()]]
    for group in groups:
        figures = group.figures["validation"]
        rows.append([group.name, _cell(figures["epoch"], len(group.runs), 0), *_cells(group, "validation")])
    return rows


def _cells(group: Group, kind: str) -> list[str]:
    figures, rules = group.figures[kind], group.threshold_rules[kind]
    cells = {name: _cell(figures[name], len(group.runs), 1) for name in METRICS}
    # A threshold is named with its rule; where the runs' rules differ, there is no mean.
    value = [] if len(rules) > 1 else [_cell(figures["threshold"], len(group.runs), 3)]
    cells["threshold"] = " ".join([", ".join(rules), *value]).strip()
    return [cells[name] for name in HEADINGS]


def _cell(figure: Summary | None, runs: int, digits: int) -> str:
    """Mean ± deviation; the number of runs where it is not all of them."""
    if figure is None:
        return "-"
    spread = "" if figure.deviation is None else f" ± {figure.deviation:.{max(digits, 1)}f}"
    some = "" if figure.count == runs else f" (of {figure.count})"
    return f"{figure.mean:.{digits if not spread else max(digits, 1)}f}{spread}{some}"


def _plain(value: Any) -> str:
    """As the configuration file would have it, on one line."""
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


def comparison_data(groups: Sequence[Group]) -> dict[str, Any]:
    """The same for programs."""

    def plain(figures: dict[str, Summary | None]) -> dict[str, Any]:
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
                "baselines": group.baselines,
            }
            for group in groups
        ],
        "differences": differences(groups),
        "warnings": doubts(groups),
    }
