"""The data set class that training and evaluation use, whatever the layout on disk."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .images import image_size, load_image, load_tensor
from .records import Problem, Record, RecordTable, Split


class LocalizationDataset:
    """Labelled images with boxes or masks where there are some. `open_dataset` makes it.

    class_names: one name per label.
    records: a sequence of `Record` (id, label, size, boxes, masks, path).
    pseudo_boxes: the file or folder of the boxes, if these are not the data set's own.
    left_out: the problems of images that `skip_bad_images` removed.
    notes: sentences on what became of the files, where that is not obvious.
    """

    def __init__(self, split: Split, root: str, left_out: Sequence[Problem] = ()) -> None:
        self.layout = split.layout
        self.split = split.name
        self.root = root
        self.class_names = split.class_names
        self.pseudo_boxes = split.pseudo_boxes
        self.upright = split.upright
        self.left_out = list(left_out)
        self.notes = list(split.notes)
        self.records = RecordTable(split.records, split.image_root)
        self._pixels = split.pixels

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return (
            f"<{self.layout} data set {self.root!r}, split {self.split!r}: {len(self)} images, "
            f"{self.num_classes} classes, {int(self.records.box_counts.sum())} boxes>"
        )

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def with_classes(self, class_names: Sequence[str]) -> LocalizationDataset:
        """The same images with labels that count the same names in another order."""
        place = {name: label for label, name in enumerate(class_names)}
        renamed = copy.copy(self)
        renamed.class_names = list(class_names)
        renamed.records = copy.copy(self.records)
        renamed.records.labels = np.array([place[name] for name in self.class_names], np.int64)[self.labels]
        return renamed

    @property
    def labels(self) -> np.ndarray:
        """(len,) int64."""
        return self.records.labels

    @property
    def in_memory(self) -> bool:
        """True if reading an image is free, so that loader workers would only cost."""
        return self._pixels is not None

    def size(self, index: int) -> tuple[int, int]:
        """(width, height) of an image."""
        record = self.records[index]
        return record.size or image_size(self._path(record), upright=self.upright)

    def load(self, index: int, target_size: tuple[int, int] | None = None) -> Image.Image:
        """The image in RGB; a large JPEG may come smaller, but never below target_size (width, height)."""
        if self._pixels is not None:
            return Image.fromarray(self._pixels[index])
        return load_image(self._path(self.records[index]), target_size=target_size, upright=self.upright)

    def load_tensor(self, index: int, target_size: tuple[int, int] | None = None) -> Tensor:
        """The same as uint8 (3, H, W), faster."""
        if self._pixels is not None:
            return torch.from_numpy(self._pixels[index]).permute(2, 0, 1)
        return load_tensor(self._path(self.records[index]), target_size=target_size, upright=self.upright)

    @staticmethod
    def _path(record: Record) -> str:
        assert record.path is not None, "generated images are read by their own data set class"
        return record.path
