"""Boxes as files that other tools read: JSON, COCO, CSV and YOLO; of `predict` and of `evaluate`."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from .localizer import Prediction

# A prediction with the name that its output files have, without a suffix: `birds/014/photo`.
Named: TypeAlias = "tuple[str, Prediction]"


class FoundBoxes(NamedTuple):
    """The boxes of an image's best class, x0, y0, x1, y1 in pixels, each with its score."""

    image: str
    size: tuple[int, int]  # (width, height)
    label: int
    boxes: Sequence[tuple[Sequence[float], float]]


def write_coco(path: Path, found: Iterable[FoundBoxes], class_names: Sequence[str]) -> Path:
    """A COCO data set: bbox (x, y, width, height), each with its score."""
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    for number, (image, (width, height), label, boxes) in enumerate(found, 1):
        images.append({"id": number, "file_name": image, "width": width, "height": height})
        for box, score in boxes:
            bbox = rounded(corner_and_size(box))
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": label,
                    "bbox": bbox,
                    "area": round(bbox[2] * bbox[3], 2),
                    "iscrowd": 0,
                    "score": round(score, 6),
                }
            )
    categories = [{"id": label, "name": name} for label, name in enumerate(class_names)]
    return _dump(path, {"images": images, "categories": categories, "annotations": annotations})


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    """One line per row, under the names of its columns."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0] if rows else ())
        writer.writeheader()
        writer.writerows(rows)
    return path


def corner_columns(box: Sequence[float] | None, prefix: str = "") -> dict[str, object]:
    """x0, y0, x1, y1 of a box as columns of a CSV file; empty without a box."""
    values = [""] * 4 if box is None else [f"{value:.2f}" for value in box]
    return {f"{prefix}{name}": value for name, value in zip(("x0", "y0", "x1", "y1"), values, strict=True)}


def _predictions_json(folder: Path, predictions: Sequence[Named], class_names: Sequence[str]) -> Path:
    """A list, one entry per image: size, the classes, best first, and the boxes (x0, y0, x1, y1), whose first is
    also `box`."""
    entries = [
        {
            "image": prediction.name,
            "width": prediction.size[0],
            "height": prediction.size[1],
            "box": rounded(prediction.box),
            "boxes": [{"box": rounded(box), "score": round(score, 6)} for box, score in prediction.boxes],
            "classes": [asdict(c) for c in prediction.classes],
        }
        for _, prediction in predictions
    ]
    return _dump(folder / "predictions.json", entries)


def _predictions_coco(folder: Path, predictions: Sequence[Named], class_names: Sequence[str]) -> Path:
    found = [FoundBoxes(p.name, p.size, p.classes[0].index, detections(p)) for _, p in predictions]
    return write_coco(folder / "predictions.coco.json", found, class_names)


def _predictions_csv(folder: Path, predictions: Sequence[Named], class_names: Sequence[str]) -> Path:
    rows = [
        {
            "image": prediction.name,
            "width": prediction.size[0],
            "height": prediction.size[1],
            "class": prediction.classes[0].index,
            "name": prediction.classes[0].name,
            "score": f"{score:.6f}",
            **corner_columns(box),
        }
        for _, prediction in predictions
        for box, score in detections(prediction)
    ]
    return write_csv(folder / "predictions.csv", rows)


def _predictions_yolo(folder: Path, predictions: Sequence[Named], class_names: Sequence[str]) -> Path:
    """`labels/NAME.txt` with lines of `class x_centre y_centre width height`, fractions, and `classes.txt`."""
    labels = folder / "labels"
    for name, prediction in predictions:
        width, height = prediction.size
        lines = []
        for box, _ in prediction.boxes:
            x, y, w, h = corner_and_size(box)
            values = (x + w / 2) / width, (y + h / 2) / height, w / width, h / height
            lines.append(
                f"{prediction.classes[0].index} " + " ".join(f"{value:.6f}" for value in values) + "\n"
            )
        path = labels / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines))
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in class_names))
    return labels


# What `predict --format` offers.
FORMATS: dict[str, Callable[[Path, Sequence[Named], Sequence[str]], Path]] = {
    "json": _predictions_json,
    "coco": _predictions_coco,
    "csv": _predictions_csv,
    "yolo": _predictions_yolo,
}


def detections(prediction: Prediction) -> list[tuple[Sequence[float], float]]:
    """The boxes with the scores that detectors give: the best class's times that of the box, 1 for the first."""
    return [(box, prediction.classes[0].score * score) for box, score in prediction.boxes]


def rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]


def corner_and_size(box: Sequence[float]) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = box
    return x0, y0, x1 - x0, y1 - y0


def _dump(path: Path, contents: object) -> Path:
    path.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
    return path
