"""`Evaluation`: the metrics of a split, at any threshold, from the evaluator's records.

All figures are percentages. Classification counts all images; localisation counts the images that have
ground-truth boxes. With IoU the best over an image's ground-truth boxes and a hit IoU >= 0.5:

| metric                 | an image counts if                                                              |
|------------------------|---------------------------------------------------------------------------------|
| `top1_cls`, `top5_cls` | its label is the best class, or among the five best                             |
| `gt_known`             | the box of its *ground-truth* class's map is a hit                              |
| `top1_loc`, `top5_loc` | `gt_known`, and `top1_cls` or `top5_cls`                                        |
| `gt_known_published`   | the box of its *best* class's map is a hit, be the class right or not           |
| `max_box_acc`          | `gt_known` at the threshold that is best for the split                          |
| `max_box_acc_v2`       | any contour's box is a hit; mean over IoU 0.3, 0.5, 0.7 of each one's best      |
|                        | threshold                                                                       |
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .boxes import box_area, threshold_level
from .breakdown import error_kinds
from .pixels import pixel_average_precision
from .records import Records

DELTAS = (0.3, 0.5, 0.7)
# IoU is needed for every image and level; a chunk of images at a time keeps the scratch memory at some MB.
_CHUNK = 256


class Evaluation:
    """What an `Evaluator` computed: threshold curves, and the figures at a threshold.

    `thresholds` is (T,); every curve is (T,) too, in percent.
    """

    def __init__(
        self, records: Records, thresholds: NDArray, levels: NDArray[np.integer], size: tuple[int, int]
    ) -> None:
        self.records = records
        self.thresholds = thresholds
        self.size = size
        self._levels = levels

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def has_boxes(self) -> NDArray[np.bool_]:
        """(N,), the images that localisation is judged on."""
        return self.records.truth_count > 0

    @cached_property
    def top1_right(self) -> NDArray[np.bool_]:
        return self.records.top_class[:, 0] == self.records.label

    @cached_property
    def top5_right(self) -> NDArray[np.bool_]:
        return (self.records.top_class == self.records.label[:, None]).any(axis=1)

    @property
    def classification(self) -> dict[str, float]:
        return {"top1_cls": percent(self.top1_right), "top5_cls": percent(self.top5_right)}

    @property
    def curves(self) -> dict[str, NDArray[np.float64]]:
        """`gt_known`, `gt_known@0.3`, `gt_known@0.7`, `top1_loc`, `top5_loc`, `gt_known_published`, and
        `every_box@0.3`, `@0.5`, `@0.7` (a hit of any contour's box); empty without ground-truth boxes."""
        rows = np.searchsorted(self._levels, [threshold_level(t) for t in self.thresholds])
        return {name: values[rows] for name, values in self._level_curves.items()}

    @cached_property
    def _level_curves(self) -> dict[str, NDArray[np.float64]]:
        """The curves over the L levels."""
        rows = np.flatnonzero(self.has_boxes)
        if not len(rows):
            return {}
        levels = self.records.true_class_box.shape[1]
        sums: dict[str, NDArray[np.int64]] = {}

        def add(name: str, hits: NDArray[np.bool_]) -> None:
            sums[name] = sums.get(name, 0) + hits.sum(axis=0, dtype=np.int64)

        for begin in range(0, len(rows), _CHUNK):
            chunk = rows[begin : begin + _CHUNK]
            part = self.records.select(chunk)
            iou = best_iou(part.true_class_box, part)
            hit = iou >= 0.5
            add("gt_known", hit)
            add("gt_known@0.3", iou >= 0.3)
            add("gt_known@0.7", iou >= 0.7)
            add("top1_loc", hit & self.top1_right[chunk, None])
            add("top5_loc", hit & self.top5_right[chunk, None])
            add("gt_known_published", best_iou(part.top_class_box, part) >= 0.5)
            every = np.unpackbits(part.every_box_hit, axis=2, count=levels).astype(bool)
            for position, delta in enumerate(DELTAS):
                add(f"every_box@{delta}", every[:, position])
        return {name: 100 * total / len(rows) for name, total in sums.items()}

    def best(self, curve: str) -> tuple[float, float]:
        """(value, threshold) of a curve's maximum; of equal thresholds the middle one, which is likeliest to
        serve other images as well."""
        values = self.curves[curve]
        equals = np.flatnonzero(values == values.max())
        position = equals[len(equals) // 2]
        return float(values[position]), float(self.thresholds[position])

    @property
    def max_box_acc(self) -> tuple[float, float]:
        """(value, threshold)."""
        return self.best("gt_known")

    @property
    def max_box_acc_v2(self) -> float:
        return float(np.mean([self.best(f"every_box@{delta}")[0] for delta in DELTAS]))

    @property
    def px_ap(self) -> float | None:
        """None if no image has a mask."""
        return pixel_average_precision(self.records.pixel_count.sum(axis=0, dtype=np.int64))

    def _level_row(self, threshold: float) -> int:
        """The row of the levels at which `threshold` cuts a map."""
        level = threshold_level(threshold)
        row = int(np.searchsorted(self._levels, level))
        if not 0 <= threshold < 1 or row == len(self._levels) or self._levels[row] != level:
            raise InputError(
                f"threshold must be in [0, 1) and one that the evaluator was asked for, got {threshold}"
            )
        return row

    def at(self, threshold: float) -> dict[str, float]:
        """The metrics that depend on a threshold, at this one."""
        row = self._level_row(threshold)
        return {name: float(values[row]) for name, values in self._level_curves.items() if "@" not in name}

    def boxes_at(self, threshold: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Boxes (N, 4) of the ground-truth class's and of the best class's map, at the evaluation size."""
        row = self._level_row(threshold)
        records = self.records
        return records.true_class_box[:, row].astype(np.int64), records.top_class_box[:, row].astype(np.int64)

    def iou(self, boxes: NDArray) -> NDArray[np.float64]:
        """Best IoU of one box an image (N, 4) with its ground truth, (N,); NaN for images without any."""
        iou = np.full(len(self.records), np.nan)
        rows = np.flatnonzero(self.has_boxes)
        if len(rows):
            iou[rows] = best_iou(boxes[rows, None], self.records.select(rows))[:, 0]
        return iou

    def error_kinds(self, threshold: float) -> list[str | None]:
        """See `breakdown`."""
        records = self.records
        return error_kinds(self.boxes_at(threshold)[1], records.truth, records.truth_count, self.top1_right)

    def constant_box(self, box: tuple[int, int, int, int]) -> dict[str, float]:
        """The metrics of a method that answers `box` for every image, with this model's classification."""
        iou = self.iou(np.tile(np.array(box), (len(self.records), 1)))[self.has_boxes]
        if not len(iou):
            return {}
        hit = iou >= 0.5
        return {
            "top1_loc": percent(hit & self.top1_right[self.has_boxes]),
            "top5_loc": percent(hit & self.top5_right[self.has_boxes]),
            "gt_known": percent(hit),
            "max_box_acc_v2": float(np.mean([percent(iou >= delta) for delta in DELTAS])),
            "mean_iou": percent(iou),
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """What two boxes that look at no image score: the whole image, and the centred one of 75 % side."""
        width, height = self.size
        left, top = width // 8, height // 8
        return {
            "full image": self.constant_box((0, 0, width - 1, height - 1)),
            "centre box": self.constant_box((left, top, width - left - 1, height - top - 1)),
        }


def percent(values: NDArray) -> float:
    return float(100 * values.mean()) if len(values) else 0.0


def best_iou(boxes: NDArray, records: Records) -> NDArray[np.float64]:
    """IoU of boxes (N, K, 4) with the best of each image's ground-truth boxes (at least one), (N, K)."""
    owner = np.repeat(np.arange(len(records)), records.truth_count)
    pairs = boxes[owner].astype(np.int64)
    truth = records.truth[:, None].astype(np.int64)
    sides = np.minimum(pairs[..., 2:], truth[..., 2:]) - np.maximum(pairs[..., :2], truth[..., :2]) + 1
    shared = np.clip(sides, 0, None).prod(axis=-1)
    iou = shared / (box_area(pairs) + box_area(truth) - shared)
    return np.maximum.reduceat(iou, records.truth_start)
