"""The gallery: chosen images, each as a strip of input, F0, S0, activation map, and box against truth."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from ...data import LocalizationDataset
from ..boxes import INTERPOLATIONS, normalize_map
from ..breakdown import KINDS
from ..output import Prediction
from ..runner import Predictor, evaluation_preprocessing

PANEL = 168  # pixels, width and height of a panel
TRUTH, PREDICTED = (80, 220, 60), (60, 60, 255)  # BGR: green and red
_BATCH = 16


@dataclass(frozen=True)
class Case:
    """One gallery entry."""

    prediction: Prediction
    ranks: tuple[str, ...]  # of best, median, worst; none for an example of its error kind
    strip: str  # data URI


def choose(rows: Sequence[Prediction], count: int = 12, per_kind: int = 6) -> dict[int, tuple[str, ...]]:
    """Positions in `rows` with their ranks: best, median and worst IoU, and some more of each error kind."""
    judged = {position: row.iou for position, row in enumerate(rows) if row.iou is not None}
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
        of_kind = [position for position in order if rows[position].error == kind]
        # Spread over the range of IoU rather than the first ones.
        for place in np.linspace(0, len(of_kind) - 1, min(per_kind, len(of_kind))).astype(int).tolist():
            chosen.setdefault(of_kind[place], ())
    if not judged:  # no ground truth: whatever comes first
        chosen = dict.fromkeys(range(min(count, len(rows))), ())
    return chosen


def build_gallery(
    rows: Sequence[Prediction], dataset: LocalizationDataset, predictor: Predictor
) -> list[Case]:
    """Run the model again on the chosen images and draw them."""
    chosen = choose(rows)
    positions = list(chosen)
    preprocessing = evaluation_preprocessing(predictor.model)
    height, width = preprocessing.size
    cases = []
    for begin in range(0, len(positions), _BATCH):
        part = positions[begin : begin + _BATCH]
        images = [dataset.load(rows[p].index, target_size=(width, height)) for p in part]
        batch = preprocessing.normalize(
            torch.stack([preprocessing.prepare(image) for image in images]).to(predictor.device)
        )
        localization, maps = predictor(batch, lambda logits: logits.argmax(1, keepdim=True))
        attention, activation = localization.attention.float().cpu().numpy(), maps[:, 0].float().cpu().numpy()
        semantic: list[NDArray | None] = [None] * len(part)
        if localization.semantic is not None:
            best = localization.logits.argmax(1)
            own = localization.semantic[torch.arange(len(part), device=best.device), best]
            semantic = list(own.float().cpu().numpy())
        for i, position in enumerate(part):
            row = rows[position]
            picture = cv2.cvtColor(np.asarray(images[i]), cv2.COLOR_RGB2BGR)
            truth = dataset.records[row.index].boxes
            strip = draw_strip(picture, [attention[i], semantic[i], activation[i]], row.size, truth, row.box)
            cases.append(Case(row, chosen[position], strip))
    return cases


def draw_strip(
    picture: NDArray,
    maps: Sequence[NDArray | None],
    size: tuple[int, int],
    truth: Sequence[Sequence[float]],
    box: Sequence[float] | None,
) -> str:
    """Input, the maps over it, and the boxes (in pixels of the original of `size`), as a JPEG data URI."""
    panel = cv2.resize(picture, (PANEL, PANEL), interpolation=cv2.INTER_AREA)
    panels = [panel]
    for values in maps:
        panels.append(np.full_like(panel, 235) if values is None else overlay(panel, values))
    boxed = panel.copy()
    for corners, colour in [*((b, TRUTH) for b in truth), *([(box, PREDICTED)] if box is not None else [])]:
        scaled = np.asarray(corners) * PANEL / np.tile(size, 2)
        x0, y0, x1, y1 = np.clip(np.rint(scaled), 0, PANEL - 1).astype(int).tolist()
        cv2.rectangle(boxed, (x0, y0), (x1, y1), colour, 2)
    strip = np.hstack([*panels, boxed])
    encoded = cv2.imencode(".jpg", strip, [cv2.IMWRITE_JPEG_QUALITY, 80])[1]
    return "data:image/jpeg;base64," + base64.b64encode(encoded.tobytes()).decode()


def overlay(panel: NDArray, values: NDArray) -> NDArray:
    """A map as heat over the picture."""
    resized = cv2.resize(values.astype(np.float64), (PANEL, PANEL), interpolation=INTERPOLATIONS["cubic"])
    heat = cv2.applyColorMap((normalize_map(resized) * 255).astype(np.uint8), cv2.COLORMAP_TURBO)
    return cv2.addWeighted(panel, 0.45, heat, 0.55, 0)
