"""Boxes as files that other tools read: JSON, COCO, CSV and YOLO; of `predict` and of `evaluate`.

What is written is read image by image, more than once where a format wants it, and never held as a whole.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from .files import replacing

if TYPE_CHECKING:
    from .localizer import Prediction

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet would compute


class Finding(NamedTuple):
    """What is written about an image: a prediction without its map."""

    output: str  # the name that its own files have, without a suffix: `birds/014/photo`
    image: str
    size: tuple[int, int]  # (width, height)
    classes: Sequence[Mapping[str, Any]]  # index, name and score, best first
    boxes: Sequence[tuple[Sequence[float], float]]  # x0, y0, x1, y1 in pixels, and the box's score
    empty: str = ""  # why there is no box

    @classmethod
    def of(cls, output: str, prediction: Prediction) -> Finding:
        classes = [vars(found) for found in prediction.classes]
        return cls(output, prediction.name, prediction.size, classes, prediction.boxes, prediction.empty)

    @property
    def label(self) -> int:
        return self.classes[0]["index"]

    @property
    def detections(self) -> list[tuple[Sequence[float], float]]:
        """The boxes with the scores that detectors give: the class's times that of the box."""
        return [(box, self.classes[0]["score"] * score) for box, score in self.boxes]


class FoundBoxes(NamedTuple):
    """The boxes of an image's best class, x0, y0, x1, y1 in pixels, each with its score."""

    image: str
    size: tuple[int, int]  # (width, height)
    label: int
    boxes: Sequence[tuple[Sequence[float], float]]


def write_coco(path: Path, found: Iterable[FoundBoxes], class_names: Sequence[str]) -> Path:
    """A COCO data set: bbox (x, y, width, height), each with its score. Goes over `found` twice."""
    images = (
        {"id": number, "file_name": image, "width": size[0], "height": size[1]}
        for number, (image, size, _, _) in enumerate(found, 1)
    )
    boxes = (
        (number, label, box, score)
        for number, (_, _, label, boxes) in enumerate(found, 1)
        for box, score in boxes
    )
    annotations = (_annotation(number, *about) for number, about in enumerate(boxes, 1))
    categories = ({"id": label, "name": name} for label, name in enumerate(class_names))
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write('{\n "images": ')
        _write_list(file, images)
        file.write(',\n "categories": ')
        _write_list(file, categories)
        file.write(',\n "annotations": ')
        _write_list(file, annotations)
        file.write("\n}\n")
    return path


def _annotation(number: int, image: int, label: int, box: Sequence[float], score: float) -> dict[str, object]:
    bbox = rounded(corner_and_size(box))
    return {
        "id": number,
        "image_id": image,
        "category_id": label,
        "bbox": bbox,
        "area": round(bbox[2] * bbox[3], 2),
        "iscrowd": 0,
        "score": round(score, 6),
    }


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


def _predictions_json(folder: Path, found: Iterable[Finding], class_names: Sequence[str]) -> Path:
    """A list, one entry per image: size, the classes, best first, and the boxes (x0, y0, x1, y1), whose first is
    also `box`. Without a box that is null, and `empty` says why."""
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
        for finding in found
    )
    path = folder / "predictions.json"
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        _write_list(file, entries)
        file.write("\n")
    return path


def _predictions_coco(folder: Path, found: Iterable[Finding], class_names: Sequence[str]) -> Path:
    return write_coco(folder / "predictions.coco.json", _Boxes(found), class_names)


class _Boxes:
    """The findings as `write_coco` wants them, each time anew."""

    def __init__(self, found: Iterable[Finding]) -> None:
        self._found = found

    def __iter__(self) -> Iterator[FoundBoxes]:
        return (FoundBoxes(f.image, f.size, f.label, f.detections) for f in self._found)


def _predictions_csv(folder: Path, found: Iterable[Finding], class_names: Sequence[str]) -> Path:
    """A line per box; an image without one has a line whose corners are empty."""

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
        for finding in found
        for box, score in scored(finding)
    )
    columns = ("image", "width", "height", "class", "name", "score", *corner_columns(None))
    return write_csv(folder / "predictions.csv", columns, rows)


def _predictions_yolo(folder: Path, found: Iterable[Finding], class_names: Sequence[str]) -> Path:
    """`labels/NAME.txt` with lines of `class x_centre y_centre width height`, fractions, and `classes.txt`."""
    labels = folder / "labels"
    for finding in found:
        width, height = finding.size
        lines = []
        for box, _ in finding.boxes:
            x, y, w, h = corner_and_size(box)
            values = (x + w / 2) / width, (y + h / 2) / height, w / width, h / height
            lines.append(f"{finding.label} " + " ".join(f"{value:.6f}" for value in values) + "\n")
        path = labels / f"{finding.output}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines))
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in class_names))
    return labels


# What `predict --format` offers. The findings can be gone over again.
FORMATS: dict[str, Callable[[Path, Iterable[Finding], Sequence[str]], Path]] = {
    "json": _predictions_json,
    "coco": _predictions_coco,
    "csv": _predictions_csv,
    "yolo": _predictions_yolo,
}


def rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]


def corner_and_size(box: Sequence[float]) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = box
    return x0, y0, x1 - x0, y1 - y0


def _write_list(file: TextIO, entries: Iterable[Mapping[str, object]]) -> None:
    """As a JSON list, an entry per line."""
    separator = "[\n"
    for entry in entries:
        file.write(f"{separator}  {json.dumps(entry)}")
        separator = ",\n"
    file.write("[]" if separator == "[\n" else "\n ]")
