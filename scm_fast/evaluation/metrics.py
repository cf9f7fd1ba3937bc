"""`SplitMetrics`: the metrics of a split at any threshold, from the evaluator's table.

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

With five classes or fewer every label is among the five best, so there is no Top-5. Where the model's classes are
not the data's, the best class's map stands for the ground-truth class's, and no metric or kind is about classes.

Why a localisation failed is counted in the kinds of the literature. An image is of the first kind that fits
the box of its best class. P is that box, G a ground-truth box, IoG = |P and G| / |G| and
IoP = |P and G| / |P|.

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

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..threshold import CUTS, MapStatistics, Threshold, best_value, cut_levels, get_rule, rule_names
from ..threshold.boxed import BestValue
from .boxes import box_area
from .pixels import pixel_average_precision
from .table import Cuts, EvaluationTable

TOP = 5  # classes that are kept of each image
DELTAS = (0.3, 0.5, 0.7)
KINDS = ("correct", "class", "multi_instance", "part", "more", "region")
# IoU is needed for every image and level; a chunk of images at a time keeps the scratch memory at some MB.
_CHUNK = 256


class SplitMetrics:
    """The results of an `Evaluator`: threshold curves, and the figures at a threshold.

    `thresholds` is (T,), the values of the rule `global`; a rule's curves are over its `values`, in percent.

    num_classes: of the model; None if that is not known.
    """

    def __init__(self, table: EvaluationTable, cuts: Cuts, num_classes: int | None = None) -> None:
        self.table = table
        self.cuts = cuts
        self.has_top5 = num_classes is None or num_classes > TOP
        self.pseudo_boxes: str | None = None  # where the boxes are from, if they are not the data set's own
        self.prescribed: Threshold | None = None  # where the method cuts its own map, if it says so
        self.foreign_classes = False  # whether the model's classes are others than those of the labels

    def __len__(self) -> int:
        return len(self.table)

    @property
    def thresholds(self) -> NDArray[np.float64]:
        return self.cuts.thresholds

    @cached_property
    def has_boxes(self) -> NDArray[np.bool_]:
        """(N,), the images that localisation is judged on."""
        return self.table.truth_count > 0

    @cached_property
    def top1_right(self) -> NDArray[np.bool_]:
        return self.table.top_class[:, 0] == self.table.label

    @cached_property
    def top5_right(self) -> NDArray[np.bool_]:
        return (self.table.top_class == self.table.label[:, None]).any(axis=1)

    @property
    def classification(self) -> dict[str, float]:
        return self.meaningful({"top1_cls": percent(self.top1_right), "top5_cls": percent(self.top5_right)})

    def values(self, rule: str) -> NDArray[np.float64]:
        """(V,), of a threshold rule, ascending."""
        own = get_rule(rule).values
        return self.thresholds if own is None else own

    @property
    def curves(self) -> dict[str, NDArray[np.float64]]:
        """Curves over the global thresholds, see `rule_curves`."""
        return self.rule_curves["global"]

    @cached_property
    def rule_curves(self) -> dict[str, dict[str, NDArray[np.float64]]]:
        """Curves of every rule over its values: `gt_known`, `gt_known@0.3`, `gt_known@0.7`, `top1_loc`, `top5_loc`,
        `gt_known_published`, and `every_box@0.3`, `@0.5`, `@0.7` (a hit of any contour's box); empty without
        ground-truth boxes."""
        rows = np.flatnonzero(self.has_boxes)
        sums: dict[str, dict[str, NDArray[np.int64]]] = {rule: {} for rule in rule_names()}
        for begin in range(0, len(rows), _CHUNK):
            chunk = rows[begin : begin + _CHUNK]
            part = self.table.select(chunk)
            hits = self._hits(part, chunk, part.true_class_box, part.top_class_box)  # each (n, L)
            every = np.unpackbits(part.every_box_hit, axis=2, count=CUTS).astype(bool)
            hits |= {f"every_box@{delta}": every[:, position] for position, delta in enumerate(DELTAS)}
            for rule, totals in sums.items():
                true_class, top_class = self._levels(part, rule, self.values(rule))
                for name, hit in hits.items():
                    levels = top_class if name == "gt_known_published" else true_class
                    if rule == "global":  # all images are cut at the same levels
                        count = hit.sum(axis=0, dtype=np.int64)[levels[0]]
                    else:
                        count = np.take_along_axis(hit, levels, axis=1).sum(axis=0, dtype=np.int64)
                    totals[name] = totals.get(name, 0) + count
        return {
            rule: {name: 100 * total / len(rows) for name, total in totals.items()}
            for rule, totals in sums.items()
        }

    @staticmethod
    def _levels(
        part: EvaluationTable, rule: str, values: NDArray | list[float]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the levels (n, V) at which a rule's V values cut n maps of the true and of the best class."""
        true_class, top_class = (
            cut_levels(rule, np.asarray(values), MapStatistics(*statistics.T[:, :, None]))
            for statistics in (part.true_class_statistics, part.top_class_statistics)
        )
        return true_class, top_class

    def _hits(
        self,
        part: EvaluationTable,
        rows: NDArray[np.integer],
        true_class_box: NDArray,
        top_class_box: NDArray,
    ) -> dict[str, NDArray[np.bool_]]:
        """Return which images of `part`, rows (n,) of the table, a metric counts with K boxes (n, K, 4), (n, K)."""
        iou = best_iou(true_class_box, part)
        hit = iou >= 0.5
        hits = {
            "gt_known": hit,
            "gt_known@0.3": iou >= 0.3,
            "gt_known@0.7": iou >= 0.7,
            "top1_loc": hit & self.top1_right[rows, None],
            "top5_loc": hit & self.top5_right[rows, None],
            "gt_known_published": best_iou(top_class_box, part) >= 0.5,
        }
        return self.meaningful(hits)

    def meaningful(self, figures: dict) -> dict:
        """Drop what says nothing: Top-5 of few classes, and all that compares a label with a foreign class."""
        without: tuple[str, ...] = () if self.has_top5 else ("top5",)
        if self.foreign_classes:
            without = ("top1", "top5", "class")
        return {name: value for name, value in figures.items() if not name.startswith(without)}

    def best(self, curve: str, rule: str = "global") -> BestValue:
        """Return a curve's maximum in percent, and the rule's value there."""
        return best_value(self.values(rule), self.rule_curves[rule][curve])

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
        if not self.table.has_mask.any():
            return None
        return pixel_average_precision(self.table.pixel_count.sum(axis=0, dtype=np.int64))

    def threshold(self, value: float, rule: str = "global") -> Threshold:
        """Make a threshold for maps that are resized as these were."""
        return Threshold(value, rule, self.cuts.interpolation)

    def boxes_at(self, threshold: Threshold) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Boxes (N, 4) of the ground-truth class's and of the best class's map, at the evaluation size."""
        if threshold.interpolation != self.cuts.interpolation:
            raise InputError(
                f"the threshold is for maps with {threshold.interpolation} interpolation, these maps have "
                f"{self.cuts.interpolation}"
            )
        table, rows = self.table, np.arange(len(self.table))
        true_class, top_class = self._levels(table, threshold.rule, [threshold.value])
        return (
            table.true_class_box[rows, true_class[:, 0]].astype(np.int64),
            table.top_class_box[rows, top_class[:, 0]].astype(np.int64),
        )

    def at(self, threshold: Threshold) -> dict[str, float]:
        """The metrics that depend on a threshold, at this one."""
        rows = np.flatnonzero(self.has_boxes)
        true_class, top_class = self.boxes_at(threshold)
        hits = self._hits(self.table.select(rows), rows, true_class[rows, None], top_class[rows, None])
        return {name: 100 * int(values.sum()) / len(rows) for name, values in hits.items() if "@" not in name}

    @property
    def blank_maps(self) -> int:
        """Return how many images have a map of the best class that is constant or not of finite numbers."""
        return int((self.table.top_class_statistics[:, MapStatistics._fields.index("std")] == 0).sum())

    def iou(self, boxes: NDArray) -> NDArray[np.float64]:
        """Best IoU of one box per image (N, 4) with its ground truth, (N,); NaN for images without any."""
        iou = np.full(len(self.table), np.nan)
        rows = np.flatnonzero(self.has_boxes)
        if len(rows):
            iou[rows] = best_iou(boxes[rows, None], self.table.select(rows))[:, 0]
        return iou

    def error_kinds(self, threshold: Threshold) -> list[str | None]:
        """Return the error kind of each image; None for one without ground truth."""
        table = self.table
        right = self.top1_right | self.foreign_classes  # then no class can be wrong
        return error_kinds(self.boxes_at(threshold)[1], table.truth, table.truth_count, right)

    def constant_box(self, box: tuple[int, int, int, int]) -> dict[str, float]:
        """The metrics of a method that answers `box` for every image, with this model's classification."""
        iou = self.iou(np.tile(np.array(box), (len(self.table), 1)))[self.has_boxes]
        if not len(iou):
            return {}
        hit = iou >= 0.5
        figures = {
            "top1_loc": percent(hit & self.top1_right[self.has_boxes]),
            "top5_loc": percent(hit & self.top5_right[self.has_boxes]),
            "gt_known": percent(hit),
            "max_box_acc_v2": float(np.mean([percent(iou >= delta) for delta in DELTAS])),
            "mean_iou": percent(iou),
        }
        return self.meaningful(figures)

    def baselines(self) -> dict[str, dict[str, float]]:
        """Score two boxes that ignore the image: the whole image, and the centred one of 75 % side."""
        width, height = self.cuts.size
        left, top = width // 8, height // 8
        return {
            "full image": self.constant_box((0, 0, width - 1, height - 1)),
            "centre box": self.constant_box((left, top, width - left - 1, height - top - 1)),
        }


def percent(values: NDArray) -> float:
    return float(100 * values.mean()) if len(values) else 0.0


def best_iou(boxes: NDArray, table: EvaluationTable) -> NDArray[np.float64]:
    """IoU of boxes (N, K, 4) with the best of each image's ground-truth boxes (at least one), (N, K)."""
    owner = np.repeat(np.arange(len(table)), table.truth_count)
    pairs = boxes[owner].astype(np.int64)
    truth = table.truth[:, None].astype(np.int64)
    sides = np.minimum(pairs[..., 2:], truth[..., 2:]) - np.maximum(pairs[..., :2], truth[..., :2]) + 1
    shared = np.clip(sides, 0, None).prod(axis=-1)
    iou = shared / (box_area(pairs) + box_area(truth) - shared)
    return np.maximum.reduceat(iou, table.truth_start)


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


def kind_shares(kinds: list[str | None]) -> dict[str, float]:
    """Share of each kind in percent of the images with ground truth; they add up to 100."""
    judged = [kind for kind in kinds if kind is not None]
    return {kind: 100 * judged.count(kind) / max(1, len(judged)) for kind in KINDS}
