"""README.md's tables of speed, from the newest table in bench/results/, by `python bench/readme_tables.py`.

`tests/test_figures.py` holds README.md to what this prints.
"""

from __future__ import annotations

from pathlib import Path

from scm_fast.benchmarks.table import CPU_TIME, PEAK_MEMORY, TIME, WORKING_MEMORY, Row, read_table

RESULTS = Path(__file__).parent / "results"
MODULE = "spatial_calibration"


def newest_table() -> list[Row]:
    return read_table(max(RESULTS.glob("*.csv"), key=lambda path: path.name.split("-", 1)[1]))


def select(rows: list[Row], **columns: object) -> list[Row]:
    """The rows that were run and have these values, in the order of the table."""
    return [
        row
        for row in rows
        if not row.not_run and all(getattr(row, name) == value for name, value in columns.items())
    ]


def number(value: float) -> str:
    """Three digits, no exponent."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def times_faster(row: Row) -> str:
    low, middle, high = row.ratio_range or (0, 0, 0)
    return f"{number(middle)}x ({number(low)} to {number(high)}, {row.rounds} rounds)"


def module_table(rows: list[Row]) -> list[str]:
    lines = [
        "| B x C x tokens | faster | less peak memory | less, without the returned gradients |",
        "|---|---|---|---|",
    ]
    for row in select(rows, op=MODULE, mode="both", metric=TIME, variant="", against="reference"):
        if row.backend == "reference":
            continue
        memory = [
            select(rows, **vars(row.case), backend=row.backend, metric=metric)[0].ratio_p50
            for metric in (PEAK_MEMORY, WORKING_MEMORY)
        ]
        what = "`torch.compile` of the reference, " if row.backend == "compiled reference" else ""
        cells = [f"{what}{row.batch} x {row.classes} x ({row.height} x {row.width})", times_faster(row)]
        lines.append("| " + " | ".join([*cells, *(f"{number(value or 0)}x" for value in memory)]) + " |")
    return lines


def parts_table(rows: list[Row]) -> list[str]:
    """The other parts, each against what stands in its place without this package."""
    found = []
    for row in select(rows, op="training_step", metric=TIME):
        if row.backend != "reference" and row.ratio_range:
            what = "SCM" if row.backend in ("torch", "triton") else row.backend
            base = "literal SCM" if row.against == "reference" else row.against
            found.append((f"training step, {row.variant}, B = {row.batch}: {what} against {base}", row))
    for op, what in (
        ("evaluator", "against a contour search per threshold"),
        ("data_loader", "against torchvision"),
    ):
        for row in select(rows, op=op, metric=CPU_TIME):
            if row.ratio_range:
                cached = ", cached" if row.backend.endswith("cached") else ""
                found.append((f"{op.replace('_', ' ')}, {row.variant}{cached}, {what}", row))
    lines = ["| part | faster |", "|---|---|"]
    return lines + [f"| {label} | {times_faster(row)} |" for label, row in found]


def growth_lines(rows: list[Row]) -> list[str]:
    """Describe how the time grows with the tokens, batch by batch."""
    return [
        f"B = {row.batch}: {number(row.ratio_range[1])} times "
        f"({number(row.ratio_range[0])} to {number(row.ratio_range[2])})"
        for row in select(rows, op=MODULE, variant="growth with the tokens")
        if row.ratio_range
    ]


if __name__ == "__main__":
    table = newest_table()
    print(*module_table(table), "", *parts_table(table), "", *growth_lines(table), sep="\n")
