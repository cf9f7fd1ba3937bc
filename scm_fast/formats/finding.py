"""Findings about images, as every format gets them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    from ..localizer import Prediction


class Finding(NamedTuple):
    """A prediction without its map."""

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


@dataclass(frozen=True)
class Export:
    """The content of an export and its place.

    folder: of the results.
    found: can be gone over more than once.
    image_folder: an absolute path, above all images.
    """

    folder: Path
    found: Iterable[Finding]
    class_names: Sequence[str]
    image_folder: str

    def name_of(self, finding: Finding) -> str:
        """Return the image's path below the image folder."""
        return PurePath(os.path.relpath(os.path.abspath(finding.image), self.image_folder)).as_posix()


def unique_names(class_names: Sequence[str]) -> list[str]:
    """Return the names with a number behind those that repeat: ImageNet has two kinds of `crane`."""
    given, taken = set(class_names), set[str]()
    unique = []
    for name in class_names:
        found, number = name, 1
        while found in taken or (number > 1 and found in given):
            number += 1
            found = f"{name} {number}"
        taken.add(found)
        unique.append(found)
    return unique


def rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]


def corner_and_size(box: Sequence[float]) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = box
    return x0, y0, x1 - x0, y1 - y0


def write_list(file: TextIO, entries: Iterable[Mapping[str, object]]) -> None:
    """Write a JSON list, an entry per line."""
    separator = "[\n"
    for entry in entries:
        file.write(f"{separator}  {json.dumps(entry)}")
        separator = ",\n"
    file.write("[]" if separator == "[\n" else "\n ]")
