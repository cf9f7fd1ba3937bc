"""Count which classes are taken for which: a table, or with many classes the most frequent mistakes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_CLASSES = 20  # of a table that can be read
MOST_MISTAKES = 20


@dataclass(frozen=True)
class Confusion:
    """Counts of images by true class and predicted class.

    counts: (C, C), rows by true class; None if there are too many classes.
    mistakes: (true class, predicted class, images), most frequent first.
    """

    counts: list[list[int]] | None
    mistakes: list[tuple[int, int, int]]


def confusion(labels: NDArray, predicted: NDArray, classes: int) -> Confusion:
    """Build the table from the true and the predicted class of every image, each (N,)."""
    pairs, images = np.unique(np.stack([labels, predicted]), axis=1, return_counts=True)
    wrong = np.flatnonzero(pairs[0] != pairs[1])
    order = wrong[np.argsort(-images[wrong], kind="stable")][:MOST_MISTAKES]
    mistakes = [(int(pairs[0, i]), int(pairs[1, i]), int(images[i])) for i in order]
    if classes > MOST_CLASSES:
        return Confusion(None, mistakes)
    counts = np.zeros((classes, classes), int)
    counts[pairs[0], pairs[1]] = images
    return Confusion(counts.tolist(), mistakes)
