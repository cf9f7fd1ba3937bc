"""Pictures of a run's logs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ..evaluation.protocols import METRIC_NAMES
from .reading import Run

ACCURACIES = ("top1_cls", "top1_loc", "gt_known", "max_box_acc_v2", "px_ap")
SIZE = (7.0, 4.2)  # inches


def draw_curves(run: Run, folder: Path) -> list[Path]:
    """Write what there is to draw of the run's logs as PNG files; gives their paths."""
    figures = {}
    if run.steps:
        figures["loss"] = loss_figure(run)
    if run.epochs:
        figures["accuracy"] = accuracy_figure(run)
        if any(row.get("threshold") is not None for row in run.epochs):
            figures["threshold"] = threshold_figure(run)
        if "lam_1" in run.epochs[0]:
            figures["calibration"] = calibration_figure(run)
    return [save_figure(figure, folder / f"{name}.png") for name, figure in figures.items()]


def save_figure(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def loss_figure(run: Run) -> Figure:
    """Training loss and learning rate of every step."""
    figure = Figure(figsize=(SIZE[0], 5.5), layout="constrained")
    loss_axes, rate_axes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    steps = [row["step"] for row in run.steps]
    losses = np.array([row["loss"] for row in run.steps], dtype=float)
    loss_axes.plot(steps, losses, color="tab:blue", alpha=0.3, linewidth=0.8, label="of each step")
    window = max(1, len(losses) // 50)
    loss_axes.plot(steps, moving_mean(losses, window), color="tab:blue", label=f"mean of {window} steps")
    loss_axes.set(ylabel="training loss", title=run_title(run))
    loss_axes.legend()
    rate_axes.plot(steps, [row["lr"] for row in run.steps], color="tab:orange")
    rate_axes.set(ylabel="learning rate", xlabel="optimiser steps")
    return figure


def moving_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Mean of each value with up to `window - 1` before it, (n,) -> (n,)."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    return (sums[ends] - sums[begins]) / (ends - begins)


def accuracy_figure(run: Run) -> Figure:
    """The validation split's figures and the accuracy in training, with the epoch that was kept."""
    figure, axes = epochs_figure(run)
    shown = [name for name in ACCURACIES if any(name in row for row in run.epochs)]
    for name in shown:
        axes.plot(*known(run, name), marker=".", label=f"{METRIC_NAMES[name]}, {run.config.validation_name}")
    axes.plot(numbers(run), run.column("train_top1"), "--", color="grey", label="Top-1 in training")
    if run.best_epoch is not None:
        metric = METRIC_NAMES[run.chosen_metric]
        number = float(run.best_epoch["epoch"] or 0) + 1
        axes.axvline(number, color="black", linewidth=0.8, linestyle=":", label=f"kept: best {metric}")
    axes.set(ylabel="percent")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


def threshold_figure(run: Run) -> Figure:
    figure, axes = epochs_figure(run)
    epochs, thresholds = known(run, "threshold")
    names = [row.get("threshold_rule") for row in run.epochs if row.get("threshold") is not None]
    for rule in dict.fromkeys(names):
        values = [value if name == rule else np.nan for value, name in zip(thresholds, names, strict=True)]
        axes.plot(epochs, values, marker=".", label=rule)
    axes.set(ylabel=f"box threshold of {run.config.validation_name}")
    axes.legend(title="rule")
    return figure


def calibration_figure(run: Run) -> Figure:
    """lambda and beta of every block after each epoch."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    figure.suptitle(run_title(run), fontsize="medium")
    for axes, name, symbol in zip(figure.subplots(1, 2), ("lam", "beta"), ("λ", "β"), strict=True):
        columns = [column for column in run.epochs[0] if column.startswith(f"{name}_")]
        for column in columns:
            axes.plot(
                numbers(run), run.column(column), marker=".", label=f"block {column.removeprefix(name + '_')}"
            )
        axes.set(xlabel="epochs", title=symbol)
        count_epochs(axes)
        axes.legend(fontsize="small")
    return figure


def epochs_figure(run: Run) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="epochs", title=run_title(run))
    count_epochs(axes)
    return figure, axes


def count_epochs(axes: Axes) -> None:
    """Ticks at whole epochs."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def numbers(run: Run) -> Sequence[float]:
    """Epochs done when each row of the log was written."""
    return [(row["epoch"] or 0) + 1 for row in run.epochs]


def known(run: Run, name: str) -> tuple[list[float], list[float]]:
    """Epochs done and values of a column where there are some: not every epoch is validated."""
    points = [
        (number, value)
        for number, value in zip(numbers(run), run.column(name), strict=True)
        if not math.isnan(value)
    ]
    return [number for number, _ in points], [value for _, value in points]


def run_title(run: Run) -> str:
    config = run.config
    preset = f" ({config.preset})" if config.calibrates else ""
    return f"{config.method}{preset}, {config.backbone}, {Path(config.data).name}"
