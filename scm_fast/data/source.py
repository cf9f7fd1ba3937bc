"""The source of a command's images: each split is opened once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from .dataset import LocalizationDataset
from .opening import open_dataset, resolve_layout


@dataclass
class DataSource:
    """A data folder, or the built-in set, with the options that say how to read it.

    source = DataSource("CUB_200_2011")
    source.split("test")  # opened and checked; the same object the next time

    val_boxes: pseudo-boxes that stand in for the boxes of the validation split, wherever one is chosen on it. The
        other arguments are those of `open_dataset`.
    """

    root: str | os.PathLike[str]
    layout: str = "auto"
    images: str | os.PathLike[str] | None = None
    boxes: str | os.PathLike[str] | None = None
    skip_bad_images: bool = False
    val_boxes: str | os.PathLike[str] | None = None
    # By their names and their pseudo-boxes, if they have such.
    _splits: dict[tuple[str, str | os.PathLike[str] | None], LocalizationDataset] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _told: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def has_split(self, name: str) -> bool:
        if (name, None) in self._splits:
            return True
        layout, folder = resolve_layout(self.root, self.layout)
        return name in layout.splits(folder)

    def split(self, name: str) -> LocalizationDataset:
        """Open a split with its own boxes, to train on and to measure with, whatever `val_boxes` says."""
        return self._open(name, None)

    def validation(self, name: str) -> LocalizationDataset:
        """Open a split to choose a threshold or a model on, with the pseudo-boxes of `val_boxes` if given."""
        return self._open(name, self.val_boxes)

    def _open(self, name: str, pseudo_boxes: str | os.PathLike[str] | None) -> LocalizationDataset:
        if (name, pseudo_boxes) not in self._splits:
            self._splits[name, pseudo_boxes] = open_dataset(
                self.root,
                name,
                self.layout,
                images=self.images,
                boxes=self.boxes,
                pseudo_boxes=pseudo_boxes,
                skip_bad_images=self.skip_bad_images,
                told=self._told,  # splits have most notes in common
            )
        return self._splits[name, pseudo_boxes]
