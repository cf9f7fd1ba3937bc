"""The results table: one CSV row for each op, shape, mode, backend and metric.

A figure has three numbers, the 20th, 50th and 80th percentile of the rounds. In a round all backends take
turns, so that each round has a ratio of its own: `ratio` is what the baseline took over what this backend took
(above 1 is faster, or smaller), again as percentiles of the rounds.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable
from pathlib import Path

from ..errors import InputError
from ..files import replacing

TIME = "time"  # wall-clock seconds; on a GPU those of its kernels, which nobody holds up
EAGER_TIME = "eager time"  # on a GPU, with the host that launches the kernels one by one
CPU_TIME = "cpu time"  # processor seconds of all threads
PEAK_MEMORY = "peak memory"  # bytes of tensors alive at once, beyond those before the call
WORKING_MEMORY = "working memory"  # the same without what the call returns
TIMES = (TIME, CPU_TIME)
ALL_TIMES = (*TIMES, EAGER_TIME)
UNITS = {TIME: "s", EAGER_TIME: "s", CPU_TIME: "s", PEAK_MEMORY: "bytes", WORKING_MEMORY: "bytes"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A measured case, whoever computes it. A size that an op does not have is None."""

    op: str
    mode: str  # forward, backward or both
    batch: int | None = None
    classes: int | None = None
    height: int | None = None  # of the token grid
    width: int | None = None
    dtype: str = ""
    variant: str = ""  # what else tells this case from others of the op

    @property
    def shape(self) -> str:
        """Describe the shape for people: `128 x 200 x 14 x 14, p = 16`."""
        sizes = (self.batch, self.classes, self.height, self.width)
        text = " x ".join(str(size) for size in sizes if size is not None)
        dtype = "" if self.dtype in ("", "float32") else self.dtype
        return ", ".join(part for part in (text, dtype, self.variant) if part)


@dataclasses.dataclass(frozen=True)
class Row(Case):
    backend: str = ""
    metric: str = TIME
    unit: str = UNITS[TIME]
    p20: float | None = None
    p50: float | None = None
    p80: float | None = None
    rounds: int | None = None
    against: str = ""  # the baseline of the ratio, which has none itself; empty where no baseline ran
    ratio_p20: float | None = None
    ratio_p50: float | None = None
    ratio_p80: float | None = None
    not_run: str = ""  # the reason why there are no figures
    device: str = ""
    python: str = ""
    torch: str = ""
    triton: str = ""
    scm_fast: str = ""
    commit: str = ""
    date: str = ""

    @property
    def case(self) -> Case:
        return Case(*(getattr(self, field.name) for field in dataclasses.fields(Case)))

    @property
    def range(self) -> tuple[float, float, float]:
        """p20, p50 and p80 of a row that was run."""
        if self.p20 is None or self.p50 is None or self.p80 is None:
            raise InputError(
                f"{self.op}, {self.shape}, {self.mode}, {self.backend}: p20, p50 or p80 is missing"
            )
        return self.p20, self.p50, self.p80

    @property
    def ratio_range(self) -> tuple[float, float, float] | None:
        """p20, p50 and p80 of the ratio, if there is one."""
        if self.ratio_p20 is None or self.ratio_p50 is None or self.ratio_p80 is None:
            return None
        return self.ratio_p20, self.ratio_p50, self.ratio_p80

    @property
    def key(self) -> tuple[Case, str, str]:
        """Return what two rows of two tables share if they measure the same thing."""
        return self.case, self.backend, self.metric


COLUMNS = tuple(field.name for field in dataclasses.fields(Row))
_INTEGERS = ("batch", "classes", "height", "width", "rounds")
_NUMBERS = ("p20", "p50", "p80", "ratio_p20", "ratio_p50", "ratio_p80")


def write_table(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, open(partial, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            cells = dataclasses.asdict(row)
            cells.update({name: f"{cells[name]:.9g}" for name in _NUMBERS if cells[name] is not None})
            writer.writerow(cells)


def read_table(path: Path) -> list[Row]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{path}: not a benchmark table, it has no column {', '.join(missing)}")
            rows = [_parse(path, reader.line_num, cells) for cells in reader]
    except (IsADirectoryError, UnicodeDecodeError, csv.Error):
        raise InputError(f"{path}: not a CSV file") from None
    if not rows:
        raise InputError(f"{path}: the table has no rows")
    return rows


def _parse(path: Path, line: int, cells: dict[str, str]) -> Row:
    values: dict[str, str | int | float | None] = {name: cells[name] for name in COLUMNS}
    for names, convert in ((_INTEGERS, int), (_NUMBERS, float)):
        for name in names:
            text = cells[name]
            try:
                values[name] = convert(text) if text else None
            except (TypeError, ValueError):
                raise InputError(f"{path}, line {line}: {name} must be a number, got {text!r}") from None
    return Row(**values)  # type: ignore[arg-type]


def format_table(rows: Iterable[Row]) -> str:
    """Times and peak memory of every backend, one line each, for a terminal."""
    found = {row.key: row for row in rows}
    lines: list[tuple[str, ...]] = [
        (
            *("op", "shape", "mode", "backend", "time (p20 - p80)", "faster (p20 - p80)"),
            *("eager time (p20 - p80)", "eager, faster", "peak", "smaller"),
        )
    ]
    previous = None
    for row in found.values():
        if row.metric not in TIMES:
            continue
        named = (row.op, row.shape, row.mode) if row.case != previous else ("", "", "")
        previous = row.case
        if row.not_run:
            lines.append((*named, row.backend, f"not run: {row.not_run}", "", "", "", "", ""))
            continue
        eager, memory = (found.get((row.case, row.backend, metric)) for metric in (EAGER_TIME, PEAK_MEMORY))
        eager_cells = (_time_cell(eager), ratio_cell(eager)) if eager else ("", "")
        times = (_time_cell(row), ratio_cell(row), *eager_cells)
        lines.append((*named, row.backend, *times, *_memory_cells(memory)))
    if not any(row.metric == EAGER_TIME for row in found.values()):
        lines = [line[:6] + line[8:] for line in lines]
    # A reason is as long as it is: it must not widen the column of times.
    widths = [
        max(len(line[column]) for line in lines if not line[column].startswith("not run"))
        for column in range(len(lines[0]))
    ]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _time_cell(row: Row) -> str:
    low, middle, high = row.range
    factor, unit = next(
        (factor, unit)
        for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us"))
        if middle * factor >= 1 or unit == "us"
    )
    text = f"{_short(middle * factor)} {unit} ({_short(low * factor)} - {_short(high * factor)})"
    return text + (", CPU" if row.metric == CPU_TIME else "")


def ratio_cell(row: Row) -> str:
    """`29.4x (28.9 - 30.1)`; empty without a ratio."""
    if row.ratio_range is None:
        return ""
    low, middle, high = row.ratio_range
    return f"{_short(middle)}x ({_short(low)} - {_short(high)})"


def _memory_cells(row: Row | None) -> tuple[str, str]:
    if row is None or row.p50 is None:
        return "", ""
    return format_bytes(row.p50), "" if row.ratio_p50 is None else f"{_short(row.ratio_p50)}x"


def format_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{_short(count)} {unit}"
        count /= 1024
    return f"{_short(count)} GiB"


def _short(value: float) -> str:
    """Three digits, or all of a large number: never an exponent."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
