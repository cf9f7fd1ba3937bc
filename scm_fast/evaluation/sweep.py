"""The boxes of a map at every threshold, at a fraction of the cost of tracing contours at each.

Two facts make this exact and fast:

- A map has 256 levels, so a thousand thresholds ask for at most 255 distinct foregrounds.
- Where the foreground is one connected component, its contour of largest area is its outer one, and the box
  of that is the extent of the foreground, which the maxima of rows and columns give for all levels at once.

How many components there are is known without tracing as long as the topology does not change. Between two
neighbouring levels it can change in four ways: a component appears (only at a local maximum), a hole is
filled (only at a local minimum), and components merge or holes appear, which both lower the Euler number
(components minus holes). The Euler number of all levels comes from four histograms. So levels fall into
*regimes* of one topology; contours are traced at the first level of each, and at the others only if the
foreground has several parts.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from .boxes import contour_box, to_uint8

_CROSS = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
_SQUARE = cv2.getStructuringElement(cv2.MORPH_RECT, (3, 3))


class LevelBoxes(NamedTuple):
    """Boxes at each of L levels."""

    largest: NDArray[np.int32]  # (L, 4), the contour of largest area; zeros where there is none
    every: NDArray[np.int32]  # (n, 4), all contours of all levels, level by level; (0, 4) if not asked for
    starts: NDArray[np.int64]  # (L,), where each level's boxes begin in `every`


def boxes_at_levels(
    scores: NDArray[np.float64], levels: NDArray[np.integer], every_contour: bool = True
) -> LevelBoxes:
    """Boxes of `scores > level` at each of the ascending `levels` (of 0 ... 254).

    Args:
        scores: (h, w) map in [0, 1], at the evaluation size.
        levels: (L,) levels, strictly ascending.
        every_contour: collect the boxes of all contours too, holes included.
    """
    image = to_uint8(scores)
    height, width = image.shape
    size = (width, height)
    left, right = _extent(image.max(axis=0), levels)
    top, bottom = _extent(image.max(axis=1), levels)
    euler = _euler_numbers(image)
    regimes = _regimes(scores, image, euler)

    largest = np.zeros((len(levels), 4), dtype=np.int32)
    found = bottom >= 0
    largest[found, 0], largest[found, 1] = left[found], top[found]
    largest[found, 2] = np.minimum(right[found] + 1, width - 1)
    largest[found, 3] = np.minimum(bottom[found] + 1, height - 1)

    every: list[tuple[int, int, int, int]] = []
    starts = np.zeros(len(levels), dtype=np.int64)
    extents = [tuple(box) for box in largest.tolist()]
    regime, contours_of_regime, components_of_regime = -1, 0, 0
    for row, level in enumerate(levels.tolist()):
        starts[row] = len(every)
        known = regimes[level] == regime
        if not found[row]:
            every.append((0, 0, 0, 0))
            continue
        if known and components_of_regime == 1 and (contours_of_regime == 1 or not every_contour):
            every.append(extents[row])
            continue
        x0, y0 = int(left[row]), int(top[row])
        foreground = image[y0 : int(bottom[row]) + 1, x0 : int(right[row]) + 1]
        foreground = cv2.threshold(foreground, level, 255, cv2.THRESH_BINARY)[1]
        contours = cv2.findContours(foreground, cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE, offset=(x0, y0))[0]
        regime, contours_of_regime = regimes[level], len(contours)
        components_of_regime = (len(contours) + euler[level]) // 2
        if components_of_regime > 1:
            largest[row] = contour_box(max(contours, key=cv2.contourArea), size)
        if every_contour:
            every.extend(contour_box(contour, size) for contour in contours)
    if not every_contour:
        return LevelBoxes(largest, np.zeros((0, 4), dtype=np.int32), np.zeros(len(levels), dtype=np.int64))
    return LevelBoxes(largest, np.array(every, dtype=np.int32).reshape(-1, 4), starts)


def _extent(profile: NDArray[np.uint8], levels: NDArray[np.integer]) -> tuple[NDArray, NDArray]:
    """First and last index at which `profile` (n,) exceeds each level; -1 for the last if nowhere."""
    above = profile[None, :] > levels[:, None]
    first = above.argmax(axis=1)
    last = len(profile) - 1 - above[:, ::-1].argmax(axis=1)
    return first, np.where(above.any(axis=1), last, -1)


def _count_above(values: NDArray[np.uint8]) -> NDArray[np.int64]:
    """How many values exceed each level 0 ... 255, (256,)."""
    histogram = cv2.calcHist([values], [0], None, [256], [0, 256]).ravel().astype(np.int64)
    return values.size - histogram.cumsum()


def _euler_numbers(image: NDArray[np.uint8]) -> NDArray[np.int64]:
    """8-connected components minus holes of `image > level` for levels 0 ... 255, (256,).

    Pixels are closed squares: faces minus sides plus corners, where a side or a corner is there if any of the
    pixels around it is.
    """
    padded = cv2.copyMakeBorder(image, 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=0)
    beside = cv2.max(padded[:, 1:], padded[:, :-1])
    below = cv2.max(padded[1:], padded[:-1])
    corner = cv2.max(beside[1:], beside[:-1])
    return _count_above(padded) - _count_above(beside) - _count_above(below) + _count_above(corner)


def _regimes(
    scores: NDArray[np.float64], image: NDArray[np.uint8], euler: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A number for each level 0 ... 255; levels of one number have as many components and holes, (256,).

    Extrema are looked for in `scores`, not in `image`, whose plateaus would hide which of them are real: the
    greatest score of a plateau that is a maximum is a local maximum of the scores.
    """
    extrema = (cv2.dilate(scores, _SQUARE) == scores) | (cv2.erode(scores, _CROSS) == scores)
    changed = np.zeros(256, dtype=bool)
    changed[image[extrema]] = True
    changed[1:] |= euler[1:] != euler[:-1]
    return changed.cumsum()
