"""Why a localisation failed, in the kinds that the literature counts.

Each image falls into the first kind that fits the box of its best class. P is that box, G a ground-truth box,
IoG = |P and G| / |G| and IoP = |P and G| / |P|.

| kind             | when                                                                               |
|------------------|------------------------------------------------------------------------------------|
| `correct`        | the class is right and IoU >= 0.5 with some G                                      |
| `class`          | the best class is wrong, wherever the box is                                       |
| `multi_instance` | P covers several objects: IoG > 0.3 for at least two G                             |
| `part`           | P lies on the object and misses much of it: IoP > 0.5, P smaller than G            |
| `more`           | P takes in the object and much beside it: IoG > 0.7, P at least as large as G      |
| `region`         | anything else: the box is at the wrong place                                       |

For `part` and `more`, G is the ground-truth box of the highest IoU.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .boxes import box_area

KINDS = ("correct", "class", "multi_instance", "part", "more", "region")


def error_kinds(
    boxes: NDArray, truth: NDArray, truth_count: NDArray, class_is_right: NDArray
) -> list[str | None]:
    """The kind of each of N images; None for an image without ground truth.

    Args:
        boxes: (N, 4), the best class's box of each image.
        truth: (M, 4), ground-truth boxes, image by image.
        truth_count: (N,), how many of them each image has.
        class_is_right: (N,), whether the best class is the label.
    """
    boxes, truth = boxes.astype(np.int64), truth.astype(np.int64)
    judged = np.flatnonzero(truth_count)
    owner = np.repeat(np.arange(len(judged)), truth_count[judged])
    start = np.cumsum(truth_count[judged]) - truth_count[judged]

    # One row per pair of an image's box and one of its ground-truth boxes.
    box = boxes[judged][owner]
    sides = np.minimum(box[:, 2:], truth[:, 2:]) - np.maximum(box[:, :2], truth[:, :2]) + 1
    shared = np.clip(sides, 0, None).prod(axis=1)
    of_box, of_truth = shared / box_area(box), shared / box_area(truth)
    iou = shared / (box_area(box) + box_area(truth) - shared)

    best = np.maximum.reduceat(iou, start) if len(start) else iou
    covered = np.add.reduceat((of_truth > 0.3).astype(np.int64), start) if len(start) else iou
    _, nearest = np.unique(np.where(iou == best[owner], owner, -1), return_index=True)
    nearest = nearest[-len(judged) :] if len(judged) else nearest[:0]
    smaller = box_area(box)[nearest] < box_area(truth)[nearest]

    conditions = [
        ~class_is_right[judged],
        best >= 0.5,
        covered >= 2,
        smaller & (of_box[nearest] > 0.5),
        ~smaller & (of_truth[nearest] > 0.7),
    ]
    names = ["class", "correct", "multi_instance", "part", "more"]
    kinds: list[str | None] = [None] * len(boxes)
    for row, kind in zip(judged.tolist(), np.select(conditions, names, "region").tolist(), strict=True):
        kinds[row] = kind
    return kinds


def breakdown(kinds: list[str | None]) -> dict[str, float]:
    """Share of each kind in percent of the images with ground truth; they add up to 100."""
    judged = [kind for kind in kinds if kind is not None]
    return {kind: 100 * judged.count(kind) / max(1, len(judged)) for kind in KINDS}
