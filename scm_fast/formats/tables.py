"""JSON and CSV: everything about an image, or a line for each box."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..files import replacing
from .finding import Export, Finding, rounded, write_list

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet would compute


def export_json(export: Export) -> Path:
    """Write a list, one entry per image: size, the classes, best first, and the boxes (x0, y0, x1, y1), whose
    first is also `box`. Without a box that is null, and `empty` says why."""
    entries = (
        {
            "image": finding.image,
            "width": finding.size[0],
            "height": finding.size[1],
            "box": rounded(finding.boxes[0][0]) if finding.boxes else None,
            "boxes": [{"box": rounded(box), "score": round(score, 6)} for box, score in finding.boxes],
            "classes": list(finding.classes),
            **({"empty": finding.empty} if finding.empty else {}),
        }
        for finding in export.found
    )
    path = export.folder / "predictions.json"
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        write_list(file, entries)
        file.write("\n")
    return path


def export_csv(export: Export) -> Path:
    """Write a line for each box; an image without one has a line whose corners are empty."""

    def scored(finding: Finding) -> Sequence[tuple[Sequence[float] | None, float]]:
        return finding.detections or [(None, finding.classes[0]["score"])]

    rows = (
        {
            "image": finding.image,
            "width": finding.size[0],
            "height": finding.size[1],
            "class": finding.label,
            "name": finding.classes[0]["name"],
            "score": f"{score:.6f}",
            **corner_columns(box),
        }
        for finding in export.found
        for box, score in scored(finding)
    )
    columns = ("image", "width", "height", "class", "name", "score", *corner_columns(None))
    return write_csv(export.folder / "predictions.csv", columns, rows)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> Path:
    """One line per row. Text that a spreadsheet would take for a formula is quoted with an apostrophe.

    A byte of a file name that is not UTF-8 is written as Python shows it: \\udce9.
    """
    with (
        replacing(path) as partial,
        partial.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
    ):
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({name: harmless(value) for name, value in row.items()} for row in rows)
    return path


def harmless(cell: object) -> object:
    """The cell, with an apostrophe before text that begins as a formula does; a number is none."""
    if not isinstance(cell, str) or not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def corner_columns(box: Sequence[float] | None, prefix: str = "") -> dict[str, object]:
    """x0, y0, x1, y1 of a box as columns of a CSV file; empty without a box."""
    values = [""] * 4 if box is None else [f"{value:.2f}" for value in box]
    return {f"{prefix}{name}": value for name, value in zip(("x0", "y0", "x1", "y1"), values, strict=True)}
