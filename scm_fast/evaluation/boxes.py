"""Turn an activation map into boxes, by the rules of the field's reference evaluator.

A map is resized to the evaluation size, min-max normalised, cut to 8 bits and thresholded; a box is the
bounding rectangle of a contour. Boxes are `(x0, y0, x1, y1)`; sizes are `(width, height)`, as in OpenCV and
Pillow. IoU counts pixels: a box covers `x1 - x0 + 1` columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError
from ..threshold import INTERPOLATIONS, Threshold, normalize_map, to_uint8

EVALUATION_SIZE = (224, 224)
_OPENCV = {"cubic": cv2.INTER_CUBIC, "linear": cv2.INTER_LINEAR}
# What another contour must have, to be an object too: shares of the largest one's area and of its score, and pixels
# of the evaluation size (a token of a 14 x 14 grid has 256).
OTHER_AREA, OTHER_SCORE, OTHER_PIXELS = 0.1, 0.25, 64


class ScoredBox(NamedTuple):
    """The box of an object, and how much of the map it has.

    score: the share of the whole map that lies within the contour. It is high where the map has one clear object,
        and then boxes are better: it tells good boxes from bad ones on photos whose boxes are known.
    """

    box: tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels of the original image
    score: float


class Located(NamedTuple):
    """An activation map and the boxes around the objects in it."""

    scores: NDArray[np.float64]  # the map at the evaluation size, in [0, 1]
    boxes: list[ScoredBox]  # that of the largest contour, then the others by their scores

    @property
    def box(self) -> tuple[float, float, float, float]:
        return self.boxes[0].box

    @property
    def is_blank(self) -> bool:
        """True if the map says nothing: it is constant, or not of finite numbers."""
        return not self.scores.any()


def locate(
    activation: ArrayLike, threshold: Threshold, image_size: tuple[int, int], max_boxes: int = 1
) -> Located:
    """The boxes that `threshold` cuts out of an (h, w) map of an image of `image_size` (width, height).

    A map that says nothing gives the whole image.
    """
    scores = resize_map(activation, interpolation=threshold.interpolation)
    if not scores.any():
        return Located(scores, [ScoredBox((0.0, 0.0, float(image_size[0]), float(image_size[1])), 0.0)])
    levels, level = to_uint8(scores), threshold.level(scores)
    found = object_boxes(scores, levels, level)[:max_boxes]
    return Located(
        scores, [ScoredBox(tuple(scale_to_image(box, image_size).tolist()), score) for box, score in found]
    )


def resize_map(
    activation: ArrayLike, size: tuple[int, int] = EVALUATION_SIZE, interpolation: str = "cubic"
) -> NDArray[np.float64]:
    """An (h, w) map as float64 in [0, 1] at `size` (width, height).

    A constant map becomes zeros. It is recognised before it is resized: cubic weights leave rounding noise on
    it, which min-max would blow up to the whole range.
    """
    if interpolation not in INTERPOLATIONS:
        raise InputError(f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got {interpolation!r}")
    scores = np.ascontiguousarray(activation, dtype=np.float64)
    if scores.ndim != 2 or scores.size == 0:
        raise InputError(f"an activation map must have shape (h, w), got {scores.shape}")
    if scores.min() == scores.max():
        return np.zeros(size[::-1])
    return normalize_map(cv2.resize(scores, size, interpolation=_OPENCV[interpolation]))


def are_alike(one: NDArray, other: NDArray) -> bool:
    """Tell whether two maps show the same: they are equal but for a factor and a constant."""
    return one.shape == other.shape and np.allclose(normalize_map(one), normalize_map(other), atol=1e-4)


def thresholds(step: float) -> NDArray[np.float64]:
    """0, step, 2 step, ... below 1."""
    if not 0 < step <= 1:
        raise InputError(f"step must be in (0, 1], got {step!r}")
    return np.arange(0, 1, step)


def find_contours(levels: NDArray[np.uint8], level: int) -> Sequence[NDArray]:
    """All contours of the pixels above `level`, outer ones and holes."""
    _, foreground = cv2.threshold(levels, level, 255, cv2.THRESH_BINARY)
    return cv2.findContours(foreground, cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE)[0]


def contour_box(contour: NDArray, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """`(x, y, x + w, y + h)` with right and bottom at most the last pixel of `size`."""
    x, y, w, h = cv2.boundingRect(contour)
    return x, y, min(x + w, size[0] - 1), min(y + h, size[1] - 1)


def largest_box(levels: NDArray[np.uint8], level: int) -> NDArray[np.int64]:
    """The box of the contour of largest area of the pixels above `level`, the first of equals, (4,); zeros if
    there is none."""
    height, width = levels.shape
    contours = find_contours(levels, level)
    if not contours:
        return np.zeros(4, dtype=np.int64)
    return np.array(contour_box(max(contours, key=cv2.contourArea), (width, height)), dtype=np.int64)


def object_boxes(
    scores: NDArray[np.float64], levels: NDArray[np.uint8], level: int
) -> list[tuple[NDArray[np.int64], float]]:
    """Boxes (4,) of the objects with their scores: that of `largest_box`, then the others by their scores.

    Objects are the outermost contours of the pixels above `level`, but for those that are far smaller or fainter
    than the largest: a hole is no object, and neither is what lies in one.
    """
    height, width = levels.shape
    _, foreground = cv2.threshold(levels, level, 255, cv2.THRESH_BINARY)
    # Not RETR_EXTERNAL: of contours of equal area, the first is to be the one that `largest_box` takes.
    contours, hierarchy = cv2.findContours(foreground, cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE)
    outermost = [contour for contour, links in zip(contours, hierarchy[0], strict=True) if links[3] < 0]
    largest, *others = sorted(outermost, key=cv2.contourArea, reverse=True)
    whole = float(scores.sum())

    def scored(contour: NDArray) -> tuple[NDArray[np.int64], float]:
        box = np.array(contour_box(contour, (width, height)), dtype=np.int64)
        return box, _sum_within(scores, contour) / whole

    first = scored(largest)
    smallest = max(OTHER_AREA * cv2.contourArea(largest), OTHER_PIXELS)
    found = [scored(contour) for contour in others if cv2.contourArea(contour) >= smallest]
    found.sort(key=lambda other: other[1], reverse=True)
    return [first, *(other for other in found if other[1] >= OTHER_SCORE * first[1])]


def _sum_within(scores: NDArray[np.float64], contour: NDArray) -> float:
    """Sum the pixels that a contour encloses, its own and those of holes included."""
    inside = cv2.drawContours(np.zeros(scores.shape, np.uint8), [contour], 0, 1, cv2.FILLED)
    return float(scores[inside > 0].sum())


def box_area(boxes: NDArray) -> NDArray:
    """Pixels that boxes (..., 4) cover, last row and column included."""
    return (boxes[..., 2] - boxes[..., 0] + 1) * (boxes[..., 3] - boxes[..., 1] + 1)


def box_intersection(a: NDArray, b: NDArray) -> NDArray:
    """Pixels that boxes (n, 4) and (m, 4) share, (n, m)."""
    left_top = np.maximum(a[:, None, :2], b[None, :, :2])
    right_bottom = np.minimum(a[:, None, 2:], b[None, :, 2:])
    sides = np.clip(right_bottom - left_top + 1, 0, None)
    return sides[..., 0] * sides[..., 1]


def box_iou(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    """Intersection over union of boxes (n, 4) and (m, 4), (n, m), with the +1 pixel convention."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind in "ui":  # products of 8- or 16-bit sides would overflow
        a = a.astype(np.int64)
    if b.dtype.kind in "ui":
        b = b.astype(np.int64)
    shared = box_intersection(a, b)
    return shared / (box_area(a)[:, None] + box_area(b)[None, :] - shared)


def scale_to_evaluation(
    boxes: ArrayLike, image_size: tuple[float, float], size: tuple[int, int] = EVALUATION_SIZE
) -> NDArray[np.int64]:
    """Boxes (n, 4) in pixels of an image of `image_size` to whole pixels of the evaluation size.

    Coordinates are cut, not rounded, and right and bottom are at most the last pixel.
    """
    boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    scaled = boxes * np.tile(size, 2) / np.tile(np.asarray(image_size, dtype=np.float64), 2)
    scaled[:, 2:] = np.minimum(scaled[:, 2:], np.asarray(size) - 1)
    return scaled.astype(np.int64)


def scale_to_image(
    boxes: ArrayLike, image_size: tuple[float, float], size: tuple[int, int] = EVALUATION_SIZE
) -> NDArray[np.float64]:
    """Boxes (..., 4) at the evaluation size back to pixels of the original image.

    The evaluator's rules cut right and lower edges at the last pixel; here these reach the image's edge again.
    """
    boxes = np.asarray(boxes, dtype=np.float64)
    limits = np.asarray(size, dtype=np.float64)
    boxes = np.concatenate(
        [boxes[..., :2], np.where(boxes[..., 2:] == limits - 1, limits, boxes[..., 2:])], axis=-1
    )
    return boxes * np.tile(np.asarray(image_size, dtype=np.float64) / limits, 2)
