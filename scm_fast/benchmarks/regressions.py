"""Find what became slower from one results table to another.

Times are compared by their ratio to the baseline that took turns with them, which a busier machine moves
little; where there is no baseline, and for memory, by the figures themselves. A figure is worse when its range
of rounds (20th to 80th percentile) lies wholly beyond the other's and its median moved by more than the
tolerance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..errors import InputError
from .table import ALL_TIMES, Row, format_bytes, ratio_cell

# So much may the times of two runs on one machine differ, and their memory, which is counted.
TOLERANCE = 0.2
MEMORY_TOLERANCE = 0.02
LISTED = 10  # rows of one table only: a full study beside a short one has hundreds


@dataclasses.dataclass(frozen=True)
class Change:
    """One figure in both tables. `factor` is how many times as much the second takes."""

    before: Row
    after: Row
    factor: float
    beyond_spread: bool


@dataclasses.dataclass(frozen=True)
class Regressions:
    """The rows that moved beyond their spread from the first table to the second."""

    worse: list[Change]
    better: list[Change]
    compared: int
    only_before: list[Row]  # not in the second table, or not run there
    only_after: list[Row]


def find_regressions(
    before: Sequence[Row], after: Sequence[Row], tolerance: float = TOLERANCE
) -> Regressions:
    """Every figure that both tables have. An InputError without any, or if they are of different devices."""
    first, second = ({row.key: row for row in rows if not row.not_run} for rows in (before, after))
    common = [key for key in first if key in second]
    if not common:
        raise InputError("the two tables have no measurement in common")
    for key in common:
        if first[key].device != second[key].device:
            raise InputError(
                f"the two tables are of different devices: {first[key].device} and {second[key].device}"
            )
    changes = [change(first[key], second[key]) for key in common if not _is_baseline(first[key])]

    def moved_by(found: Change, factor: float) -> bool:
        allowed = tolerance if found.before.metric in ALL_TIMES else MEMORY_TOLERANCE
        return found.beyond_spread and factor > 1 + allowed

    return Regressions(
        worse=sorted((c for c in changes if moved_by(c, c.factor)), key=lambda c: -c.factor),
        better=sorted((c for c in changes if moved_by(c, _inverse(c.factor))), key=lambda c: c.factor),
        compared=len(changes),
        only_before=[row for key, row in first.items() if key not in second],
        only_after=[row for key, row in second.items() if key not in first],
    )


def _inverse(factor: float) -> float:
    return 1 / factor if factor else math.inf


def _is_baseline(row: Row) -> bool:
    """Tell whether this is the time that others are measured by: its own ups and downs are the machine's."""
    return row.metric in ALL_TIMES and row.against == row.backend


def change(before: Row, after: Row) -> Change:
    old, new = _taken(before, after), _taken(after, before)
    disjoint = new[0] > old[2] or new[2] < old[0]
    factor = new[1] / old[1] if old[1] else (math.inf if new[1] else 1.0)
    return Change(before, after, factor, disjoint)


def _taken(row: Row, other: Row) -> tuple[float, float, float]:
    """Return what `row` takes, lowest first: against its baseline if `other` has one too, else in its own unit."""
    if row.metric in ALL_TIMES and row.ratio_range and other.ratio_range:
        low, middle, high = row.ratio_range  # large when the backend is quick
        return 1 / high, 1 / middle, 1 / low
    return row.range


def format_regressions(found: Regressions) -> str:
    """The report that `scm-fast bench --compare` prints."""
    lines = []
    for title, changes in (("worse", found.worse), ("better", found.better)):
        lines += [f"{len(changes)} of {found.compared} {title} beyond the spread" + (":" if changes else "")]
        lines += [f"  {_describe(one)}" for one in changes]
    for title, rows in (("first", found.only_before), ("second", found.only_after)):
        if rows:
            lines.append(f"{len(rows)} measured in the {title} table only")
            lines += [f"  {_name(row)}" for row in rows[:LISTED]]
            lines += [f"  and {len(rows) - LISTED} more"] * (len(rows) > LISTED)
    return "\n".join(lines)


def _name(row: Row) -> str:
    return f"{row.op}, {row.shape}, {row.mode}, {row.backend}, {row.metric}"


def _describe(one: Change) -> str:
    return f"{_name(one.before)}: {one.factor:.2f}x ({_figure(one.before)} -> {_figure(one.after)})"


def _figure(row: Row) -> str:
    if row.metric not in ALL_TIMES:
        return format_bytes(row.range[1])
    return f"{ratio_cell(row)} against {row.against}" if row.ratio_range else f"{row.range[1]:.3g} s"
