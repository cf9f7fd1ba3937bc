"""`EvaluationTable`: what is kept of each image: a few numbers, and the box at every level. Never a map.

A map can be cut at 255 levels, so an image takes about 2.3 kB, and the 50,000 images of ILSVRC's validation set
some 115 MB, whatever the number of classes. Images with masks add two histograms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from .. import distributed


@dataclass(frozen=True)
class Cuts:
    """The levels at which the maps of all images are cut.

    thresholds: (T,), the global ones that curves are over.
    size, interpolation: (width, height) that maps are resized to before, and how.
    """

    thresholds: NDArray[np.float64]
    size: tuple[int, int]
    interpolation: str


@dataclass
class EvaluationTable:
    """Columns over N images and the L levels 0 ... 254. M is the number of ground-truth boxes, P of images with
    masks."""

    index: NDArray[np.int64]  # (N,), the image's place in the data set: its identity
    label: NDArray[np.int32]  # (N,)
    top_class: NDArray[np.int32]  # (N, 5), best first; -1 where there are fewer classes
    top_score: NDArray[np.float32]  # (N, 5), probabilities
    confidence: NDArray[np.float32]  # (N,), see `emptiness.confidence`; zeros if the logits are not known
    image_size: NDArray[np.int32]  # (N, 2), width and height of the original
    true_class_box: NDArray[np.unsignedinteger]  # (N, L, 4), largest box of the ground-truth class's map
    top_class_box: NDArray[np.unsignedinteger]  # (N, L, 4), largest box of the best class's map
    true_class_statistics: NDArray[np.float64]  # (N, 3), see `MapStatistics`
    top_class_statistics: NDArray[np.float64]  # (N, 3)
    separation: NDArray[np.float32]  # (N, K), see `token_separation`; zeros if the tokens are not known
    every_box_hit: NDArray[np.uint8]  # (N, deltas, ceil(L / 8)), packed bits: any contour's box is a hit
    truth_count: NDArray[np.int32]  # (N,), ground-truth boxes of each image
    truth: NDArray[np.int32]  # (M, 4), at the evaluation size, image by image
    has_mask: NDArray[np.bool_]  # (N,)
    pixel_count: NDArray[np.uint32]  # (P, 2, bins), scores of foreground and background pixels

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, column.name).nbytes for column in fields(self))

    @property
    def truth_start(self) -> NDArray[np.int64]:
        """(N,), where each image's boxes begin in `truth`."""
        return np.cumsum(self.truth_count, dtype=np.int64) - self.truth_count

    def select(self, rows: NDArray[np.integer]) -> EvaluationTable:
        """The images of the given rows, in that order."""
        ragged = {
            "truth": _ragged_rows(self.truth_start, self.truth_count, rows),
            "pixel_count": (np.cumsum(self.has_mask) - 1)[rows][self.has_mask[rows]],
        }
        columns = {c.name: getattr(self, c.name)[ragged.get(c.name, rows)] for c in fields(self)}
        return EvaluationTable(**columns)

    @staticmethod
    def concatenate(parts: Sequence[EvaluationTable]) -> EvaluationTable:
        names = [column.name for column in fields(EvaluationTable)]
        return EvaluationTable(
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        )

    def gathered(self) -> EvaluationTable:
        """The images of all processes, the same on each; one that several processes saw counts once."""
        parts = distributed.gather(self)
        return (self if len(parts) == 1 else EvaluationTable.concatenate(parts)).unique()

    def unique(self) -> EvaluationTable:
        """Each image once, in the order of the data set, however often and in whatever order it was seen."""
        index, rows = np.unique(self.index, return_index=True)
        if len(index) == len(self) and (rows[1:] > rows[:-1]).all():
            return self
        return self.select(rows)


def _ragged_rows(start: NDArray, count: NDArray, rows: NDArray) -> NDArray[np.int64]:
    """Positions of the items that belong to `rows`."""
    count = count[rows].astype(np.int64)
    offset = np.cumsum(count) - count
    return np.repeat(start[rows] - offset, count) + np.arange(count.sum())
