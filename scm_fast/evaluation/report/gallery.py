"""The gallery: chosen images, each as a strip of input, F0, S0, activation map, and box against truth."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from ...overlay import blend
from ..boxes import resize_map
from ..metrics import KINDS
from ..results import ImageResult, SplitResult

PANEL = 168  # pixels, width and height of a panel
EMPTY = 235  # grey, of a map that the model does not have
OPACITY = 0.55
TRUTH, PREDICTED = (60, 220, 80), (255, 60, 60)  # RGB: green and red


@dataclass(frozen=True)
class Case:
    """One gallery entry."""

    image: ImageResult
    ranks: tuple[str, ...]  # of best, median, worst; none for an example of its error kind
    strip: str  # data URI


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


def build_gallery(done: SplitResult) -> list[Case]:
    """Read the chosen images again, and draw them with the maps that the evaluation kept."""
    assert done.maps is not None
    cases = []
    for position, ranks in choose_examples(done.images).items():
        image = done.images[position]
        picture = np.asarray(done.dataset.load(image.index, target_size=(PANEL, PANEL)))
        panel = cv2.resize(picture, (PANEL, PANEL), interpolation=cv2.INTER_AREA)
        heat = [_heat(panel, values, done.metrics.cuts.interpolation) for values in done.maps[image.index]]
        truth = done.dataset.records[image.index].boxes
        boxed = draw_boxes(panel, image.size, truth, image.box)
        cases.append(Case(image, ranks, _data_uri(np.hstack([panel, *heat, boxed]))))
    return cases


def draw_boxes(
    panel: NDArray,
    size: tuple[int, int],
    truth: Sequence[Sequence[float]],
    box: Sequence[float] | None,
) -> NDArray:
    """A copy with the boxes, which are in pixels of the original of `size`."""
    panel = panel.copy()
    for corners, colour in [*((b, TRUTH) for b in truth), *([(box, PREDICTED)] if box is not None else [])]:
        scaled = np.asarray(corners) * PANEL / np.tile(size, 2)
        x0, y0, x1, y1 = np.clip(np.rint(scaled), 0, PANEL - 1).astype(int).tolist()
        cv2.rectangle(panel, (x0, y0), (x1, y1), colour, 2)
    return panel


def _heat(panel: NDArray, values: NDArray | None, interpolation: str) -> NDArray:
    if values is None:
        return np.full_like(panel, EMPTY)
    return blend(panel, resize_map(values, (PANEL, PANEL), interpolation), OPACITY)


def _data_uri(picture: NDArray[np.uint8]) -> str:
    """RGB as a JPEG in the text of a page."""
    bgr = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
    encoded = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, 80])[1]
    return "data:image/jpeg;base64," + base64.b64encode(encoded.tobytes()).decode()
