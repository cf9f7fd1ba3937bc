"""PxAP: area under the precision-recall curve of pixels, for data sets with masks."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .boxes import EVALUATION_SIZE

IGNORED = 255


def _read_mask(path: str, size: tuple[int, int]) -> NDArray[np.bool_]:
    mask = cv2.imread(path, cv2.IMREAD_GRAYSCALE)
    if mask is None:
        raise InputError(f"{path}: not a readable mask image")
    return cv2.resize(mask, size, interpolation=cv2.INTER_NEAREST) > 0


def read_masks(
    masks: Sequence[str], ignore: str | None = None, size: tuple[int, int] = EVALUATION_SIZE
) -> NDArray[np.uint8]:
    """An image's judged pixels at the evaluation size, (h, w): 1 foreground, 0 background, 255 ignored.

    Foreground is the union of the instances' mask files; ignored are the pixels of the ignore file that are
    not foreground.
    """
    foreground = np.logical_or.reduce([_read_mask(path, size) for path in masks])
    judged = foreground.astype(np.uint8)
    if ignore:
        judged[_read_mask(ignore, size) & ~foreground] = IGNORED
    return judged


def pixel_counts(
    scores: NDArray[np.float64], judged: NDArray[np.uint8], thresholds: NDArray
) -> NDArray[np.uint32]:
    """Histograms of the scores of foreground and of background pixels, (2, len(thresholds) + 2).

    Bins lie between the thresholds; the score 1 has a bin of its own.
    """
    if scores.shape != judged.shape:
        raise InputError(f"the mask must have the shape of the map, {scores.shape}, got {judged.shape}")
    edges = np.append(thresholds, [1.0, 2.0, 3.0])
    histograms = [np.histogram(scores[judged == kind], bins=edges)[0] for kind in (1, 0)]
    return np.array(histograms, dtype=np.uint32)


def pixel_average_precision(counts: NDArray) -> float | None:
    """PxAP in percent from summed histograms (2, bins); None if no pixel is foreground."""
    true_positive, false_positive = counts.astype(np.int64)[:, ::-1].cumsum(axis=1)
    predicted, foreground = true_positive + false_positive, true_positive[-1]
    if foreground == 0:
        return None
    recall = true_positive / foreground
    precision = true_positive / np.maximum(predicted, 1)
    return float(100 * (precision[1:] * np.diff(recall))[predicted[1:] > 0].sum())
