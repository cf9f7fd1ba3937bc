"""A COCO data set of boxes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..files import replacing
from .finding import Export, FoundBoxes, corner_and_size, rounded, unique_names, write_list


def export_coco(export: Export) -> Path:
    """Write `predictions.coco.json`, with paths below the image folder."""
    path = export.folder / "predictions.coco.json"
    return write_coco(path, _Boxes(export), export.class_names, export.image_folder)


class _Boxes:
    """The findings as `write_coco` wants them, each time anew."""

    def __init__(self, export: Export) -> None:
        self._export = export

    def __iter__(self) -> Iterator[FoundBoxes]:
        return (
            FoundBoxes(self._export.name_of(f), f.size, f.label, f.detections) for f in self._export.found
        )


def write_coco(
    path: Path, found: Iterable[FoundBoxes], class_names: Sequence[str], image_folder: str | None = None
) -> Path:
    """Write a COCO data set: bbox (x, y, width, height) and its corners as a polygon, each with its score.

    found: gone over twice.
    class_names: the class of label 0 becomes category 1, because some tools drop category 0.
    image_folder: what the images' names are below.
    """
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
    categories = (
        {"id": number, "name": name, "supercategory": ""}
        for number, name in enumerate(unique_names(class_names), 1)
    )
    info = {"description": "Boxes found by scm-fast"}
    if image_folder is not None:
        info["image_folder"] = image_folder
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(f'{{\n "info": {json.dumps(info)},\n "licenses": []')
        for name, entries in (("images", images), ("categories", categories), ("annotations", annotations)):
            file.write(f',\n "{name}": ')
            write_list(file, entries)
        file.write("\n}\n")
    return path


def _annotation(number: int, image: int, label: int, box: Sequence[float], score: float) -> dict[str, object]:
    x0, y0, x1, y1 = rounded(box)
    bbox = rounded(corner_and_size(box))
    return {
        "id": number,
        "image_id": image,
        "category_id": label + 1,
        "bbox": bbox,
        "segmentation": [[x0, y0, x1, y0, x1, y1, x0, y1]],
        "area": round(bbox[2] * bbox[3], 2),
        "iscrowd": 0,
        "score": round(score, 6),
    }
