"""Records: what a data set knows about each image, and a compact table of a million of them.

Boxes are (x0, y0, x1, y1) floats in pixels of the original image, where x1 = x0 + width and y1 = y0 +
height (half-open: the box of a whole 500 x 375 image is (0, 0, 500, 375)). CUB's and COCO's x, y, width,
height files are converted so, fractions kept. The files of ILSVRC and wsolevaluation already hold corner
pairs and are taken as they are, as the reference evaluator does, although ILSVRC's right and bottom edges
name the last pixel inside.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

Box = tuple[float, float, float, float]


@dataclass(slots=True)
class Record:
    """One image. `id` is unique in the data set: the path below the image folder, with forward slashes."""

    id: str
    label: int
    size: tuple[int, int] | None = None  # (width, height) if an annotation file tells
    boxes: tuple[Box, ...] = ()  # corner pairs, see above
    masks: tuple[str, ...] = ()  # files below the image folder, one per instance
    ignore_mask: str | None = None  # file below the image folder: pixels that are not judged
    path: str | None = None  # of the image; None for a generated one


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a data set. `record_id` is set when leaving that image out cures it."""

    subject: str  # the file, folder or image at fault
    message: str
    record_id: str | None = None

    def __str__(self) -> str:
        return f"{self.subject}: {self.message}"


@dataclass(slots=True)
class Split:
    """One split as a layout reads it, before it is checked."""

    layout: str
    name: str
    image_root: Path | None  # None: the images are generated
    class_names: list[str]
    records: list[Record] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what became of the files, where that is not obvious
    box_problems: list[Problem] = field(default_factory=list)  # of the file of boxes alone
    box_source: Path | None = None  # the file or folder of the boxes; None: there are none for this split
    box_columns: str = "xyxy"  # the order in that file: xyxy or xywh
    needs_every_box: bool = True  # False: a user's own file, which may have boxes of some images alone
    pseudo_boxes: str | None = None  # where the boxes are from, if they are not the data set's own
    upright: bool = True  # False: boxes refer to the stored pixels, EXIF orientation is not applied
    pixels: np.ndarray | None = None  # (len(records), H, W, 3) uint8 of generated images

    def leave_out(self, ids: set[str | None]) -> None:
        kept = [index for index, record in enumerate(self.records) if record.id not in ids]
        self.records = [self.records[index] for index in kept]
        if self.pixels is not None:
            self.pixels = self.pixels[kept]


class _Strings:
    """Read-only list of strings in one buffer: no object per entry, so forked workers share its memory."""

    def __init__(self, strings: Sequence[str]) -> None:
        encoded = [s.encode(errors="surrogateescape") for s in strings]  # names of files may be any bytes
        self._offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(s) for s in encoded], out=self._offsets[1:])
        self._buffer = np.frombuffer(b"".join(encoded), np.uint8)

    def __getitem__(self, index: int) -> str:
        start, stop = self._offsets[index], self._offsets[index + 1]
        return self._buffer[start:stop].tobytes().decode(errors="surrogateescape")

    def fingerprint(self) -> str:
        return hashlib.sha256(self._offsets.tobytes() + self._buffer.tobytes()).hexdigest()


class RecordTable(Sequence[Record]):
    """Records as columns. A list of a million Python objects is copied page by page into every forked worker,
    because reading an object writes its reference count; arrays are shared."""

    def __init__(self, records: Sequence[Record], image_root: Path | None) -> None:
        self._root = None if image_root is None else os.fspath(image_root)
        self._ids = _Strings([r.id for r in records])
        self.labels = np.array([r.label for r in records], np.int64)
        self._sizes = np.array([r.size or (0, 0) for r in records], np.int32).reshape(-1, 2)
        self.box_counts = np.array([len(r.boxes) for r in records], np.int64)
        self._box_offsets = np.concatenate([[0], np.cumsum(self.box_counts)])
        self._boxes = np.array([b for r in records for b in r.boxes], np.float64).reshape(-1, 4)
        # Only OpenImages has masks, a few files per image, for some ten thousand images.
        self._masks = {i: (r.masks, r.ignore_mask) for i, r in enumerate(records) if r.masks}

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Record]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int) -> Record:  # type: ignore[override]
        if not -len(self) <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        index %= len(self)
        name = self._ids[index]
        width, height = self._sizes[index].tolist()
        boxes = self._boxes[self._box_offsets[index] : self._box_offsets[index + 1]]
        masks, ignore_mask = self._masks.get(index, ((), None))
        return Record(
            id=name,
            label=int(self.labels[index]),
            size=(width, height) if width else None,
            boxes=tuple(tuple(box) for box in boxes.tolist()),
            masks=tuple(os.path.join(self._root, mask) for mask in masks) if self._root else masks,
            ignore_mask=os.path.join(self._root, ignore_mask) if self._root and ignore_mask else None,
            path=None if self._root is None else os.path.join(self._root, name),
        )

    def fingerprint(self) -> str:
        """Hash of which image is at which index."""
        return self._ids.fingerprint()

    @property
    def has_boxes(self) -> bool:
        return len(self._boxes) > 0
