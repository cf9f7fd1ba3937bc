"""Draw the plots of docs/results.md from tables in this repository.

    python bench/result_plots.py --out docs/images

    gt_known    GT-Known over core-minutes, per recipe and seed: bench/figures/time_to_accuracy.csv
    tokens      time and memory of the module over the number of patches: the newest table in bench/results/
    domains     GT-Known on several kinds of photos, per method: bench/figures/domains.csv

Each plot is written twice, NAME-light.png and NAME-dark.png, large enough to read on a phone. The csv files have
columns that bench/time_to_accuracy.py (here with a row per epoch) and bench/domains.py write. Replace them by newer
ones and run this again.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from readme_tables import newest_table

from scm_fast.benchmarks.table import PEAK_MEMORY, TIME, Row

FIGURES = Path(__file__).parent / "figures"
WIDTH, DPI, FONT = 4.8, 200, 11  # 960 pixels: 11 points are 12 pixels on a phone of 380


@dataclass(frozen=True)
class Mode:
    """Colours that suit a light or a dark page; the methods' colours tell apart for colour-blind readers."""

    background: str
    text: str
    grid: str
    colours: tuple[str, ...]


MODES = {
    "light": Mode("white", "#1f2328", "#d8dde3", ("#0072B2", "#D55E00", "#009E73", "#6e7781", "#8250df")),
    "dark": Mode("none", "#e6edf3", "#3d444d", ("#56B4E9", "#F0A04B", "#3FCF9F", "#9aa4af", "#bc8cff")),
}
MARKERS = "osD^v"
RECIPES = {"scm_ten_epochs": "SCM, ten epochs", "cub_deit_tiny_fast": "SAT, fast recipe"}
METHODS = {
    "centre box": "centred box",
    "attention": "untrained attention",
    "tscam": "TS-CAM",
    "scm": "SCM",
    "custom_folder": "custom_folder",
}


def read(name: str) -> list[dict[str, str]]:
    with open(FIGURES / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def figure_of(mode: Mode, height: float, rows: int = 1) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor=mode.background)
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, 1, squeeze=False)[:, 0])
    for axis in axes:
        axis.set_facecolor(mode.background)
        axis.grid(True, color=mode.grid, linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(mode.grid)
        axis.tick_params(colors=mode.text, labelsize=FONT, length=0)
        axis.xaxis.label.set(color=mode.text, fontsize=FONT)
        axis.yaxis.label.set(color=mode.text, fontsize=FONT)
    return figure, axes


def legend(figure: Figure, axis: Any, mode: Mode) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=2,
        frameon=False,
        fontsize=FONT,
        labelcolor=mode.text,
        columnspacing=1.2,
        handletextpad=0.4,
    )


def plain(axis: Any) -> None:
    """Write 10, 100 and 1000 instead of powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def gt_known(mode: Mode) -> Figure:
    figure, (axis,) = figure_of(mode, 3.4)
    runs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in read("time_to_accuracy.csv"):
        point = float(row["core_minutes"]), float(row["gt_known"])
        runs.setdefault((row["recipe"], row["seed"]), []).append(point)
    recipes = list(dict.fromkeys(recipe for recipe, _ in runs))
    labelled = set()
    for (recipe, _), points in runs.items():
        number = recipes.index(recipe)
        label = None if recipe in labelled else RECIPES.get(recipe, recipe)
        labelled.add(recipe)
        minutes, values = zip(*sorted(points), strict=True)
        colour = mode.colours[number]
        axis.plot(
            minutes, values, color=colour, marker=MARKERS[number], linewidth=2, markersize=6, label=label
        )
    axis.set_xlim(left=0)
    axis.set_xlabel("core-minutes of training")
    axis.set_ylabel("GT-Known, %")
    legend(figure, axis, mode)
    return figure


def longest_series(rows: Iterable[Row]) -> list[Row]:
    """Give the whole module's rows for the batch with the most grids."""
    whole = [
        row
        for row in rows
        if row.op == "spatial_calibration" and row.mode == "both" and row.height and not row.variant
        if not row.not_run
    ]
    grids: dict[Any, set[Any]] = {}
    for row in whole:
        grids.setdefault((row.batch, row.classes), set()).add((row.height, row.width))
    longest = max(grids, key=lambda shape: len(grids[shape]))
    return [row for row in whole if (row.batch, row.classes) == longest]


def tokens(mode: Mode) -> Figure:
    rows = longest_series(newest_table())
    figure, axes = figure_of(mode, 5.4, rows=2)
    names = {"reference": "the paper's equations", "torch": "scm_fast, torch", "triton": "scm_fast, triton"}
    shown = [name for name in names if any(row.backend == name for row in rows)]
    for axis, (metric, label, unit) in zip(
        axes, ((TIME, "milliseconds", 1e3), (PEAK_MEMORY, "peak memory, MB", 1e-6)), strict=True
    ):
        for backend in shown:
            points = sorted(
                ((row.height or 0) * (row.width or 0), row.range[1] * unit)
                for row in rows
                if (row.backend, row.metric) == (backend, metric)
            )
            number = ("torch", "reference", "triton").index(backend)
            axis.loglog(
                *zip(*points, strict=True),
                color=mode.colours[number],
                marker=MARKERS[number],
                linewidth=2,
                markersize=6,
                label=names[backend],
            )
        ticks = sorted({(row.height or 0) * (row.width or 0) for row in rows})
        axis.set_xticks(ticks, [f"{tick}" for tick in ticks])
        axis.set_xticks([], minor=True)
        axis.set_ylabel(label)
        plain(axis.yaxis)
    axes[-1].set_xlabel("patches per image")
    legend(figure, axes[0], mode)
    return figure


def domains(mode: Mode) -> Figure:
    rows = read("domains.csv")
    sets = list(dict.fromkeys(row["set"] for row in rows))
    figure, (axis,) = figure_of(mode, 1.5 + 0.5 * len(sets))
    for number, (method, label) in enumerate(METHODS.items()):
        values: dict[str, list[float]] = {}  # of all seeds
        for row in rows:
            if row["method"] == method and row["gt_known"]:
                values.setdefault(row["set"], []).append(float(row["gt_known"]))
        if not values:
            continue
        axis.plot(
            [sum(found) / len(found) for found in values.values()],
            [sets.index(name) + 0.12 * (number - 1.5) for name in values],
            MARKERS[number],
            color=mode.colours[(3, 1, 2, 0, 4)[number]],
            markersize=8,
            label=label,
        )
    axis.set_yticks(range(len(sets)), sets)
    axis.set_ylim(len(sets) - 0.5, -0.5)
    axis.set_xlim(0, 100)
    axis.set_xlabel("GT-Known, %")
    legend(figure, axis, mode)
    return figure


PLOTS: dict[str, Callable[[Mode], Figure]] = {"gt_known": gt_known, "tokens": tokens, "domains": domains}


def draw(out: Path, names: Iterable[str] = PLOTS) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name in names:
        for suffix, mode in MODES.items():
            written.append(out / f"{name}-{suffix}.png")
            PLOTS[name](mode).savefig(written[-1], dpi=DPI, metadata={"Software": None})
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the pictures go")
    parser.add_argument("--only", choices=PLOTS, help="one of the plots")
    args = parser.parse_args()
    print(*draw(args.out, [args.only] if args.only else PLOTS), sep="\n")
