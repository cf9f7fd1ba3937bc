"""Where the images of a command come from: each split is opened once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from .dataset import LocalizationDataset
from .opening import open_dataset


@dataclass
class DataSource:
    """A data folder, or the built-in set, with the options that say how to read it.

    source = DataSource("CUB_200_2011")
    source.split("test")  # opened and checked; the same object the next time

    The arguments are those of `open_dataset`.
    """

    root: str | os.PathLike[str]
    layout: str = "auto"
    images: str | os.PathLike[str] | None = None
    boxes: str | os.PathLike[str] | None = None
    skip_bad_images: bool = False
    _splits: dict[str, LocalizationDataset] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def split(self, name: str) -> LocalizationDataset:
        if name not in self._splits:
            self._splits[name] = open_dataset(
                self.root,
                name,
                self.layout,
                images=self.images,
                boxes=self.boxes,
                skip_bad_images=self.skip_bad_images,
            )
        return self._splits[name]
