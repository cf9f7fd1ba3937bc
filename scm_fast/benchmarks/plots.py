"""Pictures of a results table: speed-up against the reference, memory, and growth with the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..extras import require_extra
from .table import PEAK_MEMORY, TIME, TIMES, Row

# One colour for each backend in all pictures (Okabe and Ito's, told apart by colour-blind readers).
COLOURS = {
    "reference": "#555555",
    "compiled reference": "#E69F00",
    "torch": "#0072B2",
    "triton": "#009E73",
}
OTHERS = ("#CC79A7", "#56B4E9", "#D55E00", "#882255")


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Writes the pictures that the table has figures for: speedup.png, memory.png and growth.png."""
    require_extra("matplotlib", "plots", "--plot")
    measured = [row for row in rows if not row.not_run]
    whole = _whole_steps(measured)
    drawn = {
        "speedup.png": _speedup(whole),
        "memory.png": _memory(whole),
        "growth.png": _growth(measured),
    }
    figures = {name: figure for name, figure in drawn.items() if figure is not None}
    if not figures:
        raise InputError("the table has no ratio, no memory and no series of token grids to draw")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures.items():
        written.append(folder / name)
        figure.savefig(written[-1], dpi=150, facecolor="white")
    return written


def _whole_steps(rows: Sequence[Row]) -> list[Row]:
    """Drop forward and backward passes of what was also measured as both, which is what training pays."""
    both = {(row.op, row.shape) for row in rows if row.mode == "both"}
    return [row for row in rows if row.mode == "both" or (row.op, row.shape) not in both]


def _colours(rows: Sequence[Row]) -> dict[str, str]:
    """Return the colour of every backend in `rows`, the known ones first."""
    names = dict.fromkeys(row.backend for row in rows)
    others = [name for name in names if name not in COLOURS]
    colours = {name: colour for name, colour in COLOURS.items() if name in names}
    return colours | {name: OTHERS[index % len(OTHERS)] for index, name in enumerate(others)}


def _figure(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    # Without pyplot there is no global state, and no display is looked for.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.grid(True, which="major", alpha=0.35)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _speedup(rows: Sequence[Row]) -> Any:
    shown = [row for row in rows if row.metric in TIMES and row.ratio_range and row.against == "reference"]
    if not shown:
        return None
    figure, axis = _by_case(shown)
    for row, y, colour in _placed(shown):
        low, middle, high = row.ratio_range or row.range
        errors = [[middle - low], [high - middle]]
        axis.errorbar(middle, y, xerr=errors, fmt="o", color=colour, markersize=5, capsize=2, linewidth=1.5)
    axis.axvline(1, color=COLOURS["reference"], linewidth=1.5)
    axis.set_xlabel("times as fast as the reference (median of the rounds, 20th to 80th percentile)")
    _finish(figure, axis, shown)
    return figure


def _memory(rows: Sequence[Row]) -> Any:
    shown = [row for row in rows if row.metric == PEAK_MEMORY]
    if not shown:
        return None
    figure, axis = _by_case(shown)
    for row, y, colour in _placed(shown):
        axis.plot(max(row.range[1], 1) / 2**20, y, "o", color=colour, markersize=6)
    axis.set_xlabel("peak memory in MiB")
    _finish(figure, axis, shown)
    return figure


def _case_name(row: Row) -> str:
    return f"{row.op}  {row.shape}" + ("" if row.mode == "both" else f"  {row.mode}")


def _by_case(rows: Sequence[Row]) -> tuple[Any, Any]:
    """An empty picture with a line for each case, the first at the top."""
    names = list(dict.fromkeys(map(_case_name, rows)))
    figure, (axis,) = _figure(9.5, 1.3 + 0.3 * len(names))
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xscale("log")
    return figure, axis


def _placed(rows: Sequence[Row]) -> list[tuple[Row, float, str]]:
    """Each row with its height, the backends of a case a little apart, and its colour."""
    names = list(dict.fromkeys(map(_case_name, rows)))
    colours = _colours(rows)
    order = list(colours)
    apart = 0.5 / max(len(order) - 1, 1)
    return [
        (
            row,
            names.index(_case_name(row)) + apart * (order.index(row.backend) - (len(order) - 1) / 2),
            colours[row.backend],
        )
        for row in rows
    ]


def _finish(figure: Any, axis: Any, rows: Sequence[Row]) -> None:
    from matplotlib.lines import Line2D

    colours = _colours(rows)
    handles = [Line2D([], [], marker="o", linestyle="", color=colour) for colour in colours.values()]
    figure.legend(
        handles, list(colours), loc="outside upper center", ncols=min(len(colours), 4), frameon=False
    )
    _plain_numbers(axis.xaxis)
    devices = dict.fromkeys(row.device for row in rows)
    note = "shape: batch x classes x token grid, of those that the op has; " + "; ".join(devices)
    figure.supxlabel(note, fontsize=8, color="#555555")


def _plain_numbers(axis: Any) -> None:
    """10, 100 and 1000 instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _growth(rows: Sequence[Row]) -> Any:
    """Time and memory of the whole module over the number of tokens, for the batch with the longest series."""
    shown = [
        row
        for row in rows
        if row.op == "spatial_calibration" and row.mode == "both" and row.height and not row.variant
    ]
    grids: dict[tuple[int | None, int | None], set[int]] = {}
    for row in shown:
        grids.setdefault((row.batch, row.classes), set()).add((row.height or 0) * (row.width or 0))
    longest = max(grids, key=lambda shape: len(grids[shape]), default=None)
    if longest is None or len(grids[longest]) < 2:
        return None
    shown = [row for row in shown if (row.batch, row.classes) == longest]
    figure, axes = _figure(9.5, 4.4, columns=2)
    labelled = ((TIME, "seconds a step", 1.0), (PEAK_MEMORY, "peak memory in MiB", 2.0**-20))
    for axis, (metric, label, factor) in zip(axes, labelled, strict=True):
        for backend, colour in _colours(shown).items():
            points = sorted(
                ((row.height or 0) * (row.width or 0), *(value * factor for value in row.range))
                for row in shown
                if row.backend == backend and row.metric == metric
            )
            if not points:
                continue
            tokens, low, middle, high = zip(*points, strict=True)
            axis.plot(tokens, middle, "o-", color=colour, label=backend)
            axis.fill_between(tokens, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_xscale("log")
        axis.set_yscale("log")
        ticks = sorted(grids[longest])
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.set_xticks([], minor=True)
        axis.set_xlabel("tokens")
        axis.set_ylabel(label)
        _plain_numbers(axis.yaxis)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    batch, classes = longest
    note = f"spatial_calibration, forward and backward, B = {batch}, C = {classes}; {shown[0].device}"
    figure.supxlabel(note, fontsize=8, color="#555555")
    return figure
