"""Image files as uint8 tensors, by the fastest decoder that serves."""

from __future__ import annotations

import os

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional

from .images import ORIENTATION_TAG, load_image

END_OF_IMAGE = b"\xff\xd9"


def load_tensor(
    path: str | os.PathLike[str], *, target_size: tuple[int, int] | None = None, upright: bool = True
) -> Tensor:
    """uint8 (3, H, W): the pixels of `load_image` with the same arguments. Raises InputError like it.

    A usual JPEG is decoded by OpenCV straight into an array, which spares PIL's copies. Everything else goes
    through load_image: other formats and colour models, turned images, JPEGs to be decoded at a fraction
    of their size, and files without a proper end, because OpenCV fills truncated images with grey.
    """
    encoded = _plain_jpeg(path, target_size, upright)
    if encoded is not None:
        pixels = cv2.imdecode(
            np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
        )
        if pixels is not None:
            return torch.from_numpy(pixels).permute(2, 0, 1)
    return functional.pil_to_tensor(load_image(path, target_size=target_size, upright=upright))


def _plain_jpeg(
    path: str | os.PathLike[str], target_size: tuple[int, int] | None, upright: bool
) -> bytes | None:
    """The content of a file that OpenCV decodes as PIL would; None for any other."""
    try:
        with open(path, "rb") as file, Image.open(file) as image:
            if image.format != "JPEG" or image.mode not in ("RGB", "L"):
                return None
            if upright and image.getexif().get(ORIENTATION_TAG, 1) != 1:
                return None
            width, height = image.size
            if target_size and width >= 2 * target_size[0] and height >= 2 * target_size[1]:
                return None
            file.seek(0)
            encoded = file.read()
    except Exception:  # whatever is wrong with the file, load_image says it
        return None
    return encoded if encoded.endswith(END_OF_IMAGE) else None
