"""The boxes of a map at every threshold, at a fraction of the cost of tracing contours at each.

Three facts make this exact and fast:

- A map has 256 levels, so a thousand thresholds ask for at most 255 distinct foregrounds.
- Where the foreground is one connected component, its contour of largest area is its outer one, and the box
  of that is the extent of the foreground, which the maxima of rows and columns give for all levels at once.
- Holes grow with the level. One that is too small to reach the lowest IoU that counts as a hit at the upper
  end of a range of levels is so in the whole range.

How many components there are is known without tracing as long as the topology does not change. Between two
neighbouring levels it can change in four ways: a component appears (only at a local maximum), a hole is
filled (only at a local minimum), and components merge or holes appear, which both lower the Euler number
(components minus holes). The Euler number of all levels comes from four histograms. So levels fall into
*regimes* of one topology. Contours are traced at the first level of each, at the last if there are holes, and
at all of them only if the foreground has several parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ..threshold import to_uint8
from .boxes import box_area, box_intersection, contour_box

_CROSS = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
_SQUARE = cv2.getStructuringElement(cv2.MORPH_RECT, (3, 3))


class LevelBoxes(NamedTuple):
    """Boxes at each of L levels."""

    largest: NDArray[np.int32]  # (L, 4), the contour of largest area; zeros where there is none
    every: NDArray[np.int32]  # (n, 4), all contours of all levels, level by level
    starts: NDArray[np.int64]  # (L,), where each level's boxes begin in `every`


def boxes_at_levels(
    scores: NDArray[np.float64], levels: NDArray[np.integer], truth: NDArray[np.integer], min_iou: float
) -> LevelBoxes:
    """Boxes of `scores > level` at each of the ascending `levels` (of 0 ... 254).

    `every` may lack boxes of holes whose IoU with each box of `truth` is below `min_iou`: no hit is lost.
    Without `truth` it is of no use.

    Args:
        scores: (h, w) map in [0, 1], at the evaluation size.
        levels: (L,) levels, strictly ascending.
        truth: (n, 4) ground-truth boxes; none at all if only `largest` is of interest.
        min_iou: the lowest IoU that counts as a hit.
    """
    image = to_uint8(scores)
    size = image.shape[::-1]
    crops, largest = _extents(image, levels)
    euler = _euler_numbers(image)
    regimes = _regimes(scores, image, euler)[levels]
    # Rectangles (x, y, w, h) of each level; where nothing is traced, the one of the whole foreground.
    every: list[list[Sequence[int]]] = [[(x0, y0, x1 - x0, y1 - y0)] for x0, y0, x1, y1 in crops]

    def trace(row: int) -> Sequence[NDArray]:
        """Contours at a level; notes their rectangles if they will be judged."""
        x0, y0, x1, y1 = crops[row]
        foreground = cv2.threshold(image[y0:y1, x0:x1], levels[row], 255, cv2.THRESH_BINARY)[1]
        contours = cv2.findContours(foreground, cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE, offset=(x0, y0))[0]
        if len(truth):
            every[row] = [cv2.boundingRect(contour) for contour in contours]
        return contours

    foregrounds = int(np.searchsorted(levels, image.max()))  # rows from there on have no foreground
    bounds = [*np.flatnonzero(np.diff(regimes[:foregrounds], prepend=-1)).tolist(), foregrounds]
    for begin, end in itertools.pairwise(bounds):
        contours = trace(begin)
        components = (len(contours) + euler[levels[begin]]) // 2
        if components > 1:
            largest[begin] = contour_box(max(contours, key=cv2.contourArea), size)
            for row in range(begin + 1, end):
                largest[row] = contour_box(max(trace(row), key=cv2.contourArea), size)
        elif len(contours) > 1 and len(truth) and end - begin > 1:
            trace(end - 1)
            between = range(begin + 1, end - 1)
            if between and _coverage(_holes(every[end - 1], crops[end - 1], size), truth) >= min_iou:
                for row in between:
                    trace(row)
    starts = np.cumsum([0, *(len(rectangles) for rectangles in every[:-1])])
    return LevelBoxes(largest, _rectangle_boxes(list(itertools.chain(*every)), size), starts)


def _rectangle_boxes(rectangles: Sequence[Sequence[int]], size: tuple[int, int]) -> NDArray[np.int32]:
    """`contour_box` for many bounding rectangles, (n, 4)."""
    # fromiter is several times faster than array() on a list of tuples.
    boxes = np.fromiter(itertools.chain.from_iterable(rectangles), np.int32).reshape(-1, 4)
    boxes[:, 2:] = np.minimum(boxes[:, :2] + boxes[:, 2:], np.array(size) - 1)
    return boxes


def _holes(
    rectangles: Sequence[Sequence[int]], crop: Sequence[int], size: tuple[int, int]
) -> NDArray[np.int32]:
    """Boxes of all contours of a single component but its outer one, whose rectangle is the crop, (n, 4)."""
    x0, y0, x1, y1 = crop
    holes = list(rectangles)
    holes.remove((x0, y0, x1 - x0, y1 - y0))
    return _rectangle_boxes(holes, size)


def _coverage(boxes: NDArray, truth: NDArray) -> float:
    """The largest share of a ground-truth box in a box: no IoU of it, or of a box within it, is higher."""
    return float((box_intersection(boxes, truth) / box_area(truth)).max())


def _extents(
    image: NDArray[np.uint8], levels: NDArray[np.integer]
) -> tuple[list[list[int]], NDArray[np.int32]]:
    """Return each level's smallest crop with its foreground, x0, y0, x1, y1 half-open, and its box (L, 4)."""
    height, width = image.shape
    left, right = _extent(image.max(axis=0), levels)
    top, bottom = _extent(image.max(axis=1), levels)
    crops = np.stack([left, top, right, bottom], axis=1)
    return crops.tolist(), np.minimum(crops, [width, height, width - 1, height - 1]).astype(np.int32)


def _extent(profile: NDArray[np.uint8], levels: NDArray[np.integer]) -> tuple[NDArray, NDArray]:
    """First index at which `profile` (n,) exceeds each level, and one after the last; 0 and 0 if nowhere."""
    above = profile[None, :] > levels[:, None]
    found = above.any(axis=1)
    first = above.argmax(axis=1)
    last = len(profile) - above[:, ::-1].argmax(axis=1)
    return np.where(found, first, 0), np.where(found, last, 0)


def _count_above(values: NDArray) -> NDArray[np.int64]:
    """Count the values that exceed each level 0 ... 255, (256,)."""
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
