"""The gallery: chosen images, each as panels side by side.

One result shows the input, F0, S0 and the activation map where there are such and they differ, and the box against
the truth. Several show the input, and the map of each with both boxes.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ...data import LocalizationDataset
from ...overlay import blend
from ..boxes import are_alike, resize_map
from ..metrics import KINDS
from ..results import ImageResult, SplitResult

PANEL = 168  # pixels, width of a panel and its largest height
EMPTY = 235  # grey, beside a narrow picture
OPACITY = 0.55
TRUTH, PREDICTED = (60, 220, 80), (255, 60, 60)  # RGB: green and red


class Panel(NamedTuple):
    caption: str
    picture: NDArray[np.uint8]  # RGB (h, PANEL, 3)

    @property
    def uri(self) -> str:
        """A JPEG in the text of a page."""
        encoded = cv2.imencode(".jpg", self.picture[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 80])[1]
        return "data:image/jpeg;base64," + base64.b64encode(encoded.tobytes()).decode()


@dataclass(frozen=True)
class Case:
    """One gallery entry."""

    image: ImageResult
    ranks: tuple[str, ...]  # of best, median, worst; none for an example of its error kind
    panels: list[Panel]


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


def build_gallery(results: Sequence[SplitResult]) -> list[Case]:
    """The images that the last of the results chooses, read again and drawn with the maps that evaluations kept."""
    focus = results[-1]
    cases = []
    for position, ranks in choose_examples(focus.images).items():
        panels = of_several(results, position) if len(results) > 1 else of_one(focus, position)
        cases.append(Case(focus.images[position], ranks, panels))
    return cases


def of_one(done: SplitResult, position: int) -> list[Panel]:
    image = done.images[position]
    picture = small_picture(done.dataset, image)
    boxed = draw_boxes(picture, image.size, done.dataset.records[image.index].boxes, image.box)
    heats = [(name, _heat(done, picture, values)) for name, values in _maps(done, position)]
    panels = [("input", picture), *heats, ("box", boxed)]
    return [Panel(caption, _centred(panel)) for caption, panel in panels]


def of_several(results: Sequence[SplitResult], position: int) -> list[Panel]:
    """Return a panel per result for the image at `position`; all results are of the same images."""
    picture = small_picture(results[0].dataset, results[0].images[position])
    panels = [Panel("input", _centred(picture))]
    for done in results:
        image = done.images[position]
        heat = _heat(done, picture, _maps(done, position)[-1][1])
        truth = done.dataset.records[image.index].boxes
        caption = done.title if image.iou is None else f"{done.title} {image.iou:.2f}"
        panels.append(Panel(caption, _centred(draw_boxes(heat, image.size, truth, image.box))))
    return panels


def _maps(done: SplitResult, position: int) -> list[tuple[str, NDArray]]:
    """The maps that there are with their names, the activation map last; F0 is left out where it is that one."""
    assert done.maps is not None
    maps = done.maps[done.images[position].index]
    named = {"F0": maps.attention, "S0": maps.semantic, "map": maps.activation}
    if are_alike(maps.attention, maps.activation):
        del named["F0"]
    return [(name, values) for name, values in named.items() if values is not None]


def small_picture(dataset: LocalizationDataset, image: ImageResult) -> NDArray:
    """The image with its longer side of `PANEL` pixels."""
    scale = PANEL / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    picture = np.asarray(dataset.load(image.index, target_size=(width, height)))
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)


def draw_boxes(
    panel: NDArray,
    size: tuple[int, int],
    truth: Sequence[Sequence[float]],
    box: Sequence[float] | None,
) -> NDArray:
    """A copy with the boxes, which are in pixels of the original of `size`.

    The predicted frame is thinner than the true one and on top of it: both are seen where they agree.
    """
    panel = panel.copy()
    height, width = panel.shape[:2]
    frames = [(corners, TRUTH, 5) for corners in truth]
    if box is not None:
        frames.append((box, PREDICTED, 2))
    for corners, colour, thickness in frames:
        scaled = np.asarray(corners) * np.tile([width, height], 2) / np.tile(size, 2)
        limits = np.tile([width - 1, height - 1], 2)
        x0, y0, x1, y1 = np.clip(np.rint(scaled), 0, limits).astype(int).tolist()
        cv2.rectangle(panel, (x0, y0), (x1, y1), colour, thickness)
    return panel


def _centred(panel: NDArray) -> NDArray:
    """Fit the picture into a panel of full width, with grey beside one that is higher than wide."""
    left = (PANEL - panel.shape[1]) // 2
    return np.pad(panel, ((0, 0), (left, PANEL - panel.shape[1] - left), (0, 0)), constant_values=EMPTY)


def _heat(done: SplitResult, picture: NDArray, values: NDArray) -> NDArray:
    scores = resize_map(values, picture.shape[1::-1], done.metrics.cuts.interpolation)
    return blend(picture, scores, OPACITY)
