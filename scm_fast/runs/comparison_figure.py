"""The curves of several runs in one picture."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ..evaluation.protocols import METRIC_NAMES
from .comparison import Group
from .curves import count_epochs, numbers

PANELS = {
    "train_loss": "training loss",
    "top1_cls": f"{METRIC_NAMES['top1_cls']}, percent",
    "gt_known": f"{METRIC_NAMES['gt_known']}, percent",
    "threshold": "box threshold",
}


def comparison_figure(groups: Sequence[Group]) -> Figure:
    """Loss in training, and three figures of the validation split; runs of a group have one colour."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    for axes, (column, title) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        for number, group in enumerate(groups):
            for run in group.runs:
                axes.plot(numbers(run), run.column(column), marker=".", color=f"C{number}", label=group.name)
        axes.set(xlabel="epochs", ylabel=title)
        count_epochs(axes)
    lines = {str(line.get_label()): line for line in figure.axes[0].get_lines()}  # one for each group
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", fontsize="small")
    return figure
