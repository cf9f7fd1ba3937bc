"""Reducing an image's maps to boxes, in a pool of processes."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from .boxes import box_iou, resize_map
from .metrics import DELTAS, Cuts
from .pixels import pixel_counts
from .sweep import boxes_at_levels


class ImageBoxes(NamedTuple):
    """What the maps of one image are reduced to."""

    true_class: NDArray[np.unsignedinteger]  # (L, 4)
    top_class: NDArray[np.unsignedinteger]  # (L, 4)
    every_hit: NDArray[np.uint8]  # (deltas, ceil(L / 8)), packed bits
    pixel_count: NDArray[np.uint32] | None  # (2, bins)


@dataclass(frozen=True)
class BoxExtractor:
    """Makes `ImageBoxes` of an image's maps; dtype: of the boxes."""

    cuts: Cuts
    dtype: type[np.unsignedinteger]

    def __call__(
        self, maps: NDArray, same_class: bool, truth: NDArray, judged: NDArray[np.uint8] | None
    ) -> ImageBoxes:
        """maps: (2, h, w) of the ground-truth and the best class, `same_class` if they are one; truth: (n, 4)
        ground-truth boxes; judged: see `read_masks`."""
        cuts = self.cuts
        scores = resize_map(maps[0], cuts.size, cuts.interpolation)
        true_class = boxes_at_levels(scores, cuts.levels, truth, DELTAS[0])
        top_class = true_class.largest
        if not same_class:
            top_scores = resize_map(maps[1], cuts.size, cuts.interpolation)
            top_class = boxes_at_levels(top_scores, cuts.levels, truth[:0], DELTAS[0]).largest
        hits = np.zeros((len(DELTAS), len(cuts.levels)), dtype=bool)
        if len(truth):
            best = np.maximum.reduceat(box_iou(true_class.every, truth).max(axis=1), true_class.starts)
            hits = best >= np.array(DELTAS)[:, None]
        return ImageBoxes(
            true_class.largest.astype(self.dtype),
            top_class.astype(self.dtype),
            np.packbits(hits, axis=1),
            None if judged is None else pixel_counts(scores, judged, cuts.thresholds),
        )


_extractor: BoxExtractor  # of a worker process


def _start_worker(extractor: BoxExtractor) -> None:
    global _extractor
    _extractor = extractor


def _work(*image: object) -> ImageBoxes:
    return _extractor(*image)  # type: ignore[arg-type]


def available_cores() -> int:
    """Cores this process may use, shared with the other processes that torchrun started on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


class ExtractionPool:
    """Workers that run a `BoxExtractor`. Half of the work is Python, so threads would wait for each other:
    these are processes, forked as those of DataLoader are; a thread where there is no fork.

    `close` ends them; it must be called, whatever happens: OpenCV's number of threads is that of the whole
    process, and is 1 meanwhile.
    """

    def __init__(self, extractor: BoxExtractor, workers: int | None = None) -> None:
        workers = workers or available_cores()
        self._pool: Executor
        self._function: Callable[..., ImageBoxes]
        # OpenCV's own threads do not survive a fork: a worker that used or stopped them would wait for ever.
        # So they are stopped here, before it, and the workers inherit a setting that needs none.
        self._opencv_threads: int | None = cv2.getNumThreads()
        cv2.setNumThreads(1)
        if workers > 1 and sys.platform == "linux":
            self._function = _work
            self._pool = ProcessPoolExecutor(
                workers, multiprocessing.get_context("fork"), _start_worker, (extractor,)
            )
        else:
            self._function = extractor
            self._pool = ThreadPoolExecutor(1)

    def submit(
        self, maps: NDArray, same_class: bool, truth: NDArray, judged: NDArray[np.uint8] | None
    ) -> Future[ImageBoxes]:
        return self._pool.submit(self._function, maps, same_class, truth, judged)

    def close(self) -> None:
        """End the workers; what was submitted and not begun is not done. Again, it does nothing."""
        self._pool.shutdown(cancel_futures=True)
        if self._opencv_threads is not None:
            cv2.setNumThreads(self._opencv_threads)
            self._opencv_threads = None
