"""Predictions as files that other tools read: JSON, COCO, CSV and YOLO."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from .localizer import Prediction

# A prediction with the name that its output files have, without a suffix: `birds/014/photo`.
Named = tuple[str, Prediction]


def write_json(folder: Path, predictions: Sequence[Named], class_names: Sequence[str]) -> Path:
    """A list, one entry an image: size, box (x0, y0, x1, y1) and the classes, best first."""
    entries = [
        {
            "image": prediction.name,
            "width": prediction.size[0],
            "height": prediction.size[1],
            "box": _rounded(prediction.box),
            "classes": [asdict(c) for c in prediction.classes],
        }
        for _, prediction in predictions
    ]
    return _dump(folder / "predictions.json", entries)


def write_coco(folder: Path, predictions: Sequence[Named], class_names: Sequence[str]) -> Path:
    """COCO: one annotation an image, bbox (x, y, width, height), with its score."""
    images, annotations = [], []
    for number, (_, prediction) in enumerate(predictions, 1):
        width, height = prediction.size
        x, y, w, h = _corner_and_size(prediction)
        best = prediction.classes[0]
        images.append({"id": number, "file_name": prediction.name, "width": width, "height": height})
        annotations.append(
            {
                "id": number,
                "image_id": number,
                "category_id": best.index,
                "bbox": _rounded((x, y, w, h)),
                "area": round(w * h, 2),
                "iscrowd": 0,
                "score": best.score,
            }
        )
    categories = [{"id": index, "name": name} for index, name in enumerate(class_names)]
    contents = {"images": images, "categories": categories, "annotations": annotations}
    return _dump(folder / "predictions.coco.json", contents)


def write_csv(folder: Path, predictions: Sequence[Named], class_names: Sequence[str]) -> Path:
    path = folder / "predictions.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "width", "height", "class", "name", "score", "x0", "y0", "x1", "y1"])
        for _, prediction in predictions:
            best = prediction.classes[0]
            score = f"{best.score:.6f}"
            writer.writerow(
                [prediction.name, *prediction.size, best.index, best.name, score, *_rounded(prediction.box)]
            )
    return path


def write_yolo(folder: Path, predictions: Sequence[Named], class_names: Sequence[str]) -> Path:
    """`labels/NAME.txt` with `class x_centre y_centre width height` as fractions, and `classes.txt`."""
    labels = folder / "labels"
    for name, prediction in predictions:
        width, height = prediction.size
        x, y, w, h = _corner_and_size(prediction)
        values = (x + w / 2) / width, (y + h / 2) / height, w / width, h / height
        path = labels / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"{prediction.classes[0].index} " + " ".join(f"{value:.6f}" for value in values) + "\n"
        )
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in class_names))
    return labels


FORMATS: dict[str, Callable[[Path, Sequence[Named], Sequence[str]], Path]] = {
    "json": write_json,
    "coco": write_coco,
    "csv": write_csv,
    "yolo": write_yolo,
}


def _dump(path: Path, contents: object) -> Path:
    path.write_text(json.dumps(contents, indent=1) + "\n")
    return path


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]


def _corner_and_size(prediction: Prediction) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = prediction.box
    return x0, y0, x1 - x0, y1 - y0
