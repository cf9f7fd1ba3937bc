"""Pictures of predictions: the activation map as heat over the image, with its boxes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .data.images import load_image
from .formats import detections

if TYPE_CHECKING:
    from .localizer import Prediction


def blend(picture: NDArray, scores: NDArray, opacity: float) -> NDArray[np.uint8]:
    """A map in [0, 1], (H, W), as heat over an RGB picture (H, W, 3)."""
    heat = cv2.applyColorMap((scores * 255).astype(np.uint8), cv2.COLORMAP_TURBO)[..., ::-1]  # BGR to RGB
    return ((1 - opacity) * picture + opacity * heat).astype(np.uint8)


def draw_overlay(image: Image.Image, prediction: Prediction, opacity: float = 0.45) -> NDArray[np.uint8]:
    """RGB (H, W, 3) at the image's size."""
    width, height = image.size
    heat = cv2.resize(prediction.map, (width, height), interpolation=cv2.INTER_LINEAR)
    picture = blend(np.asarray(image), heat, opacity)
    thickness = max(2, round(max(width, height) / 200))
    inset = thickness // 2  # a frame along the image's edge would lie half outside
    for box, score in reversed(detections(prediction)):  # the first on top
        x0, y0, x1, y1 = (round(value) for value in box)
        corners = (max(x0, inset), max(y0, inset)), (min(x1, width - 1 - inset), min(y1, height - 1 - inset))
        cv2.rectangle(picture, *corners, (255, 255, 255), thickness)
        _write(picture, f"{prediction.classes[0].name} {score:.2f}", (x0, y0), thickness)
    return picture


def save_overlay(path: Path, prediction: Prediction) -> None:
    """Read the image that `prediction` is about again, in full size, and write its overlay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(draw_overlay(load_image(prediction.name), prediction)).save(path, quality=90)


def _write(picture: NDArray[np.uint8], text: str, corner: tuple[int, int], thickness: int) -> None:
    """Black on white, above the corner where there is room and below it elsewhere, inside the picture."""
    scale = thickness / 4
    (width, height), baseline = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, 1)
    x = max(0, min(corner[0], picture.shape[1] - width))
    y = corner[1] - baseline if corner[1] > height + baseline else corner[1] + height + baseline
    cv2.rectangle(picture, (x, y - height - 2), (x + width, y + baseline), (255, 255, 255), cv2.FILLED)
    cv2.putText(picture, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, scale, (0, 0, 0), 1, cv2.LINE_AA)
