"""Reading one image file: always 8-bit RGB, upright, or an InputError that names the file.

As a PIL image, or as a uint8 tensor by the fastest decoder that serves.
"""

from __future__ import annotations

import os
import stat

import cv2
import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms.v2 import functional

from ..errors import InputError
from .heic import can_read_heic
from .listing import HEIC_SUFFIXES

ORIENTATION_TAG = 0x0112  # EXIF
SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap width and height
END_OF_JPEG = b"\xff\xd9"


def load_image(
    path: str | os.PathLike[str],
    *,
    target_size: tuple[int, int] | None = None,
    upright: bool = True,
) -> Image.Image:
    """The image of a file, decoded, in mode RGB whatever the file holds.

    Grey (8 and 16 bit), palette, RGBA (laid on white), CMYK and YCbCr files are converted.

    target_size: (width, height) that the caller will resize to. A JPEG may then be decoded at 1/2, 1/4 or
        1/8 of its size, which is several times faster; the result is never smaller than target_size.
    upright: turn the image as its EXIF orientation says. Boxes drawn on the stored pixels need False.

    Raises InputError, with the path, for a file that is missing, truncated or no image.
    """
    try:
        with _open(path) as image:
            if target_size is not None:
                width, height = target_size
                if upright and image.getexif().get(ORIENTATION_TAG) in SIDEWAYS:
                    width, height = height, width
                image.draft(None, (width, height))  # JPEG only, a no-op elsewhere
            image.load()
            return to_rgb(ImageOps.exif_transpose(image) if upright else image)
    except FileNotFoundError:
        raise InputError(f"{os.fspath(path)}: no such image file") from None
    except MemoryError:
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, ...
        raise InputError(f"{os.fspath(path)}: cannot read this image ({error})") from error


def image_size(path: str | os.PathLike[str], *, upright: bool = True) -> tuple[int, int]:
    """(width, height) as `load_image` would give them, from the header alone. Raises InputError."""
    try:
        with _open(path) as image:
            width, height = image.size
            sideways = upright and image.getexif().get(ORIENTATION_TAG) in SIDEWAYS
    except FileNotFoundError:
        raise InputError(f"{os.fspath(path)}: no such image file") from None
    except Exception as error:
        raise InputError(f"{os.fspath(path)}: cannot read this image ({error})") from error
    return (height, width) if sideways else (width, height)


def _open(path: str | os.PathLike[str]) -> Image.Image:
    """Open an image as `Image.open` does; a HEIC file needs pillow-heif, and only regular files are read."""
    _check_regular(path)
    if os.path.splitext(path)[1].lower() in HEIC_SUFFIXES and not can_read_heic():
        raise OSError("a HEIC photo: pip install 'scm-fast[heic]'")
    return Image.open(path)


def _check_regular(path: str | os.PathLike[str]) -> None:
    """Raise an OSError for a pipe or a device: to open one may wait for ever."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError("not a regular file")


def to_rgb(image: Image.Image) -> Image.Image:
    """Any PIL image as 8-bit RGB; an RGB image is returned as it is."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # I;16, I;16B, and I, in which older Pillow opens 16-bit files
        levels = np.clip(np.asarray(image).astype(np.int64), 0, 65535) >> 8
        return Image.fromarray(levels.astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise InputError("a floating-point image has no defined white: save it as 8 or 16 bit")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


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
            np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
        )
        if pixels is not None:
            cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, pixels)  # IMREAD_COLOR_RGB is of OpenCV 4.11
            return torch.from_numpy(pixels).permute(2, 0, 1)
    return functional.pil_to_tensor(load_image(path, target_size=target_size, upright=upright))


def _plain_jpeg(
    path: str | os.PathLike[str], target_size: tuple[int, int] | None, upright: bool
) -> bytes | None:
    """The content of a file that OpenCV decodes as PIL would; None for any other."""
    try:
        _check_regular(path)
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
    return encoded if encoded.endswith(END_OF_JPEG) else None
