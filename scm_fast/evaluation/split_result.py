"""`SplitResult`: what is known about a split after its evaluation, image by image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data import LocalizationDataset, Problem
from .boxes import scale_to_image
from .breakdown import KINDS
from .metrics import SplitMetrics
from .protocols import Result


class ImageMaps(NamedTuple):
    """The best class's maps of an image on the token grid, each (h, w)."""

    attention: NDArray[np.float32]  # F0
    semantic: NDArray[np.float32] | None  # S0; None for a model without
    activation: NDArray[np.float32]  # that the box is cut from


@dataclass(frozen=True)
class ImageResult:
    """One image's outcome; boxes in pixels of the original image."""

    index: int  # in the data set
    name: str
    size: tuple[int, int]
    label: int
    top_classes: list[int]
    top_scores: list[float]
    box: list[float] | None  # of the best class; None if the protocol chose no threshold
    true_class_box: list[float] | None
    iou: float | None  # of `box`; None for an image without ground truth
    true_class_iou: float | None
    error: str | None  # kind, see `breakdown`


@dataclass
class SplitResult:
    """A split that was evaluated; the same in every process.

    about: with what it was evaluated, for metrics.json and the report.
    maps: of the images that the report shows, by their index in the data set; None if there is to be none.
    """

    dataset: LocalizationDataset
    metrics: SplitMetrics
    left_out: list[Problem]  # images that could not be used
    seconds: float
    result: Result
    about: dict[str, Any]
    maps: dict[int, ImageMaps] | None = None

    @property
    def images_per_second(self) -> float:
        return len(self.metrics) / max(self.seconds, 1e-9)

    @cached_property
    def images(self) -> list[ImageResult]:
        return image_results(self.dataset, self.metrics, self.result)


def image_results(dataset: LocalizationDataset, metrics: SplitMetrics, result: Result) -> list[ImageResult]:
    """Every image in the order of the data set, with the boxes at the result's threshold."""
    table = metrics.table
    kinds: list[str | None] = [None] * len(table)
    boxes: list[list] = [[None] * len(table)] * 2
    ious: list[list] = [[None] * len(table)] * 2
    if result.threshold is not None:
        both = metrics.boxes_at(result.threshold)  # of the true and of the best class
        boxes = [
            [
                scale_to_image(box, size, metrics.cuts.size).tolist()
                for box, size in zip(part, table.image_size, strict=True)
            ]
            for part in both
        ]
        ious = [[None if np.isnan(iou) else iou for iou in metrics.iou(part).tolist()] for part in both]
        kinds = metrics.error_kinds(result.threshold)
    rows = []
    for row, index in enumerate(table.index.tolist()):
        known = table.top_class[row] >= 0
        rows.append(
            ImageResult(
                index=index,
                name=dataset.records[index].id,
                size=tuple(table.image_size[row].tolist()),
                label=int(table.label[row]),
                top_classes=table.top_class[row][known].tolist(),
                top_scores=table.top_score[row][known].tolist(),
                box=boxes[1][row],
                true_class_box=boxes[0][row],
                iou=ious[1][row],
                true_class_iou=ious[0][row],
                error=kinds[row],
            )
        )
    return rows


def choose_examples(
    images: list[ImageResult], count: int = 12, per_kind: int = 6
) -> dict[int, tuple[str, ...]]:
    """Positions in `images` with their ranks: best, median and worst IoU, and some more of each error kind."""
    judged = {position: row.iou for position, row in enumerate(images) if row.iou is not None}
    order = sorted(judged, key=lambda position: -judged[position])
    middle = max(0, (len(order) - count) // 2)
    chosen: dict[int, tuple[str, ...]] = {}
    for rank, part in (
        ("best", order[:count]),
        ("median", order[middle : middle + count]),
        ("worst", order[-count:]),
    ):
        for position in part:
            chosen[position] = (*chosen.get(position, ()), rank)
    for kind in KINDS:
        of_kind = [position for position in order if images[position].error == kind]
        # Spread over the range of IoU rather than the first ones.
        for place in np.linspace(0, len(of_kind) - 1, min(per_kind, len(of_kind))).astype(int).tolist():
            chosen.setdefault(of_kind[place], ())
    if not judged:  # no ground truth: whatever comes first
        chosen = dict.fromkeys(range(min(count, len(images))), ())
    return chosen
