"""Pictures of predictions: the activation map as heat over the image with its boxes, and what these surround."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .data.images import load_image
from .formats import Finding

if TYPE_CHECKING:
    from .localizer import Prediction

BLACK, WHITE = (0, 0, 0), (255, 255, 255)
LONGEST_SIDE = 1600  # pixels of an overlay

Rectangle = tuple[int, int, int, int]  # x0, y0, x1, y1, the last pixels included


def blend(picture: NDArray[np.uint8], scores: NDArray, opacity: float) -> NDArray[np.uint8]:
    """A map in [0, 1], of any size, as heat over an RGB picture (H, W, 3)."""
    levels = (np.clip(scores, 0, 1) * 255).astype(np.uint8)
    levels = cv2.resize(levels, picture.shape[1::-1], interpolation=cv2.INTER_LINEAR)
    heat = cv2.cvtColor(cv2.applyColorMap(levels, cv2.COLORMAP_TURBO), cv2.COLOR_BGR2RGB)
    return np.asarray(cv2.addWeighted(picture, 1 - opacity, heat, opacity, 0), np.uint8)


def draw_overlay(image: Image.Image, prediction: Prediction, opacity: float = 0.45) -> NDArray[np.uint8]:
    """RGB (H, W, 3) at the size of `image`, which may be the prediction's image scaled down.

    Frames are white between black lines, so that they are seen on every ground.
    """
    width, height = image.size
    picture = blend(np.asarray(image), prediction.map, opacity)
    thickness = max(2, round(max(width, height) / 200))
    border = max(1, thickness // 3)
    frames = []
    for box, score in Finding.of("", prediction).detections:
        scaled = np.asarray(box) * np.tile([width, height], 2) / np.tile(prediction.size, 2)
        frames.append((_inside(np.rint(scaled).astype(int).tolist(), picture, thickness), score))
    for colour, line in ((BLACK, thickness + 2 * border), (WHITE, thickness)):
        for (x0, y0, x1, y1), _ in reversed(frames):  # the first on top
            cv2.rectangle(picture, (x0, y0), (x1, y1), colour, line)
    covered = [side for frame, _ in frames for side in _sides(frame, thickness // 2 + border + 1)]
    for frame, score in frames:
        text = f"{prediction.classes[0].name} {score:.2f}"
        covered.append(_write(picture, text, frame, covered, thickness, border))
    return picture


def save_overlay(path: Path, prediction: Prediction, longest_side: int = LONGEST_SIDE) -> None:
    """Read the image that `prediction` is about again, and write its overlay: no side is longer than that."""
    scale = min(1.0, longest_side / max(prediction.size))
    size = (max(1, round(prediction.size[0] * scale)), max(1, round(prediction.size[1] * scale)))
    image = load_image(prediction.name, target_size=size)
    if image.size != size:
        image = image.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)
    _save_jpeg(path, Image.fromarray(draw_overlay(image, prediction)), quality=90)


def save_crops(folder: Path, name: str, prediction: Prediction, numbered: bool) -> None:
    """Read the image that `prediction` is about again, and write what its boxes surround, at full size.

    The files are `name`.jpg, or `name`_1.jpg and so on if they are numbered.
    """
    image = load_image(prediction.name)
    width, height = image.size
    for number, (x0, y0, x1, y1) in enumerate((box for box, _ in prediction.boxes), 1):
        left, top = min(math.floor(x0), width - 1), min(math.floor(y0), height - 1)
        corners = left, top, max(math.ceil(x1), left + 1), max(math.ceil(y1), top + 1)
        path = folder / (f"{name}_{number}.jpg" if numbered else f"{name}.jpg")
        _save_jpeg(path, image.crop(corners), quality=95)


def _save_jpeg(path: Path, picture: Image.Image, quality: int) -> None:
    """Write the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = io.BytesIO()  # Pillow itself does not notice a disk that takes half of a file
    picture.save(encoded, "JPEG", quality=quality)
    try:
        path.write_bytes(encoded.getbuffer())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _inside(box: Sequence[int], picture: NDArray, thickness: int) -> Rectangle:
    """A frame along the image's edge would lie half outside."""
    height, width = picture.shape[:2]
    inset = thickness // 2
    x0, y0, x1, y1 = box
    return max(x0, inset), max(y0, inset), min(x1, width - 1 - inset), min(y1, height - 1 - inset)


def _sides(frame: Rectangle, reach: int) -> list[Rectangle]:
    """The four lines of a frame, `reach` pixels to either side."""
    x0, y0, x1, y1 = frame
    return [
        (x0 - reach, y0 - reach, x1 + reach, y0 + reach),
        (x0 - reach, y1 - reach, x1 + reach, y1 + reach),
        (x0 - reach, y0 - reach, x0 + reach, y1 + reach),
        (x1 - reach, y0 - reach, x1 + reach, y1 + reach),
    ]


def _write(
    picture: NDArray[np.uint8],
    text: str,
    frame: Rectangle,
    covered: Sequence[Rectangle],
    thickness: int,
    border: int,
) -> Rectangle:
    """Black on white, at the place beside or in the frame that covers least of what is there; gives the place."""
    height, width = picture.shape[:2]
    scale = thickness / 4
    (text_width, text_height), baseline = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, 1)
    label_width, label_height = text_width + 4, text_height + baseline + 4
    x0, y0, x1, y1 = frame
    away = thickness // 2 + border + 2
    corners = (
        (x0, y0 - away - label_height),  # above
        (x0, y1 + away),  # below
        (x0 + away, y0 + away),  # in the box
        (x1 + away, y0),  # to the right
        (x0 - away - label_width, y0),  # to the left
    )
    places = []
    for left, top in corners:
        left, top = max(0, min(left, width - label_width)), max(0, min(top, height - label_height))
        places.append((left, top, left + label_width - 1, top + label_height - 1))
    place = min(places, key=lambda place: sum(_shared(place, other) for other in covered))
    cv2.rectangle(picture, place[:2], place[2:], WHITE, cv2.FILLED)
    origin = place[0] + 2, place[3] - baseline - 1
    cv2.putText(picture, text, origin, cv2.FONT_HERSHEY_SIMPLEX, scale, BLACK, 1, cv2.LINE_AA)
    return place


def _shared(a: Rectangle, b: Rectangle) -> int:
    """Pixels in both."""
    width = min(a[2], b[2]) - max(a[0], b[0]) + 1
    height = min(a[3], b[3]) - max(a[1], b[1]) + 1
    return max(0, width) * max(0, height)
