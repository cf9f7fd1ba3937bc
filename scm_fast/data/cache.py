"""Decoded images in one file: the first epoch fills it, later ones read pixels instead of decoding JPEGs.

What is kept is the output of `Preprocessing.prepare`, before any random step, in uint8: 196 KB per image at 256 x
256, so 1.2 GB for CUB's training images. The file is bounded: with room for k images, the first k of the
data set are kept and the others decoded every time (training visits images in random order, so no choice of
k images is better than another).

Any number of workers, processes and runs may share it. A slot counts only if its checksum, and the size and
time of the image file it came from, agree: half-written slots, changed images and crashes lead to decoding
again, never to wrong pixels. On a full disk, caching stops with a warning. Put it on a local disk, or in
/dev/shm to keep it in memory.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from .dataset import LocalizationDataset

logger = logging.getLogger(__name__)
_ENTRY = np.dtype([("filled", "<u4"), ("checksum", "<u4"), ("file_size", "<i8"), ("file_time", "<i8")])


class DecodedCache:
    """Prepared images of one data set split at one size.

    folder: is made if need be; holds one file for each data set, split and size.
    size: (height, width), as in the preprocessing.
    max_gigabytes: bound of that file.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        dataset: LocalizationDataset,
        size: tuple[int, int],
        max_gigabytes: float,
    ) -> None:
        height, width = size
        self._shape = (height, width, 3)
        self._bytes = height * width * 3
        self.slots = min(len(dataset), int(max_gigabytes * 1e9) // (self._bytes + _ENTRY.itemsize))
        if self.slots <= 0:
            raise InputError(
                f"the decoded cache of {max_gigabytes} GB has no room for one {height} x {width} image"
            )
        self.path = Path(folder) / f"{dataset.split}-{height}x{width}-{_fingerprint(dataset)}.decoded"
        self._key = (_fingerprint(dataset), size)
        self._file: int | None = None
        self._full = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor()
        except OSError as error:
            raise InputError(f"{self.path}: cannot keep decoded images here ({error})") from error

    def check(self, dataset: LocalizationDataset, size: tuple[int, int]) -> None:
        """Raises InputError unless this cache was made for these images at this size."""
        if self._key != (_fingerprint(dataset), size):
            expected = f"split {dataset.split!r} at {size[0]} x {size[1]}"
            raise InputError(
                f"{self.path}: this decoded cache is for other images or another size, not {expected}"
            )

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_file": None}  # a spawned worker opens the file itself

    def _descriptor(self) -> int:
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            length = self.slots * (_ENTRY.itemsize + self._bytes)
            if os.fstat(self._file).st_size < length:
                os.ftruncate(self._file, length)  # sparse: takes room as it is filled
        return self._file

    def _offset(self, index: int) -> int:
        return index * (_ENTRY.itemsize + self._bytes)

    def get(self, index: int, image_path: str) -> Tensor | None:
        """uint8 (3, H, W) of an image, or None when it is not here (any more)."""
        if index >= self.slots:
            return None
        entry_bytes, pixels = bytearray(_ENTRY.itemsize), bytearray(self._bytes)
        read = os.preadv(self._descriptor(), [entry_bytes, pixels], self._offset(index))
        if read != len(entry_bytes) + len(pixels):
            return None
        entry = np.frombuffer(entry_bytes, _ENTRY)[0]
        if not entry["filled"] or entry["checksum"] != zlib.crc32(pixels):
            return None
        try:
            if _stamp(image_path) != (entry["file_size"], entry["file_time"]):
                return None
        except OSError:  # the image is gone
            return None
        return torch.frombuffer(pixels, dtype=torch.uint8).view(self._shape).permute(2, 0, 1)

    def put(self, index: int, image_path: str, image: Tensor) -> None:
        """Keeps a prepared image, uint8 (3, H, W), if there is a slot for it."""
        if index >= self.slots or self._full:
            return
        pixels = image.permute(1, 2, 0).contiguous().numpy().tobytes()
        entry = np.array([(1, zlib.crc32(pixels), *_stamp(image_path))], _ENTRY)
        try:
            os.pwrite(self._descriptor(), entry.tobytes() + pixels, self._offset(index))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._full = True
            logger.warning("%s: the disk is full, further images are decoded each time", self.path)


def _stamp(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _fingerprint(dataset: LocalizationDataset) -> str:
    """Return a fingerprint of which image has which slot."""
    place = f"{dataset.upright} {os.path.abspath(dataset.root)} {dataset.records.fingerprint()}"
    return hashlib.sha256(place.encode(errors="surrogateescape")).hexdigest()[:16]
