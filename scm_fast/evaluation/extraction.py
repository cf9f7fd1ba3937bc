"""Maps to boxes, on all cores: an image's maps are reduced to `ImageBoxes` in a pool of processes.

with kept_workers():
    ...  # evaluations, of any number of models and splits, share one pool
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ..threshold import CUTS, map_statistics
from .boxes import box_iou, resize_map
from .metrics import DELTAS
from .pixels import pixel_counts
from .sweep import boxes_at_levels
from .table import Cuts

# More of them are not needed: so many find the boxes of thousands of images a second.
MOST_WORKERS = 16

_LEVELS = np.arange(CUTS)


class ImageBoxes(NamedTuple):
    """The figures that the maps of one image are reduced to."""

    true_class: NDArray[np.unsignedinteger]  # (L, 4)
    top_class: NDArray[np.unsignedinteger]  # (L, 4)
    statistics: NDArray[np.float64]  # (2, 3), of the ground-truth class's map and the best class's
    every_hit: NDArray[np.uint8]  # (deltas, ceil(L / 8)), packed bits
    pixel_count: NDArray[np.uint32] | None  # (2, bins)
    cpu_seconds: float = 0.0  # that it took another process


@dataclass(frozen=True)
class BoxExtractor:
    """Makes `ImageBoxes` of an image's maps; dtype: of the boxes."""

    cuts: Cuts
    dtype: type[np.unsignedinteger]

    def __call__(
        self, maps: NDArray, same_map: bool, truth: NDArray, judged: NDArray[np.uint8] | None
    ) -> ImageBoxes:
        """maps: (2, h, w) of the ground-truth and the best class, `same_map` if they are one; truth: (n, 4)
        ground-truth boxes; judged: see `read_masks`."""
        cuts = self.cuts
        scores = resize_map(maps[0], cuts.size, cuts.interpolation)
        true_class = boxes_at_levels(scores, _LEVELS, truth, DELTAS[0])
        top_class = true_class.largest
        statistics = [map_statistics(scores)] * 2
        if not same_map:
            top_scores = resize_map(maps[1], cuts.size, cuts.interpolation)
            top_class = boxes_at_levels(top_scores, _LEVELS, truth[:0], DELTAS[0]).largest
            statistics[1] = map_statistics(top_scores)
        hits = np.zeros((len(DELTAS), CUTS), dtype=bool)
        if len(truth):
            best = np.maximum.reduceat(box_iou(true_class.every, truth).max(axis=1), true_class.starts)
            hits = best >= np.array(DELTAS)[:, None]
        return ImageBoxes(
            true_class.largest.astype(self.dtype),
            top_class.astype(self.dtype),
            np.array(statistics),
            np.packbits(hits, axis=1),
            None if judged is None else pixel_counts(scores, judged, cuts.thresholds),
        )


def available_cores() -> int:
    """Cores this process may use, shared with the other processes that torchrun started on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _work(extractor: BoxExtractor, *image: object) -> ImageBoxes:
    before = time.process_time()
    found = extractor(*image)  # type: ignore[arg-type]
    return found._replace(cpu_seconds=time.process_time() - before)


def _begin_worker(parent: int) -> None:
    """Leave Ctrl-C to the process that is worked for, and end when that one has died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _nothing() -> None:
    pass


class Workers:
    """Processes that run a `BoxExtractor`. Half of the work is Python, so threads would wait for each other:
    these are processes, forked as those of DataLoader are; a thread where there is no fork. Even one is a
    process: a thread that used OpenCV and ends while a later pool forks leaves its workers a locked mutex.

    OpenCV must have no threads of its own when the first image is handed in, or `start` is called: see there.
    """

    def __init__(self, count: int | None = None) -> None:
        self.process = os.getpid()
        self._pool: Executor
        self._forks = sys.platform == "linux"
        if self._forks:
            self._pool = ProcessPoolExecutor(
                count or min(available_cores(), MOST_WORKERS),
                multiprocessing.get_context("fork"),
                _begin_worker,
                (self.process,),
            )
        else:
            self._pool = ThreadPoolExecutor(1)

    def start(self) -> None:
        """Fork now; otherwise the first image does it."""
        with opencv_in_one_thread():
            self._pool.submit(_nothing).result()

    def submit(self, extractor: BoxExtractor, *image: object) -> Future[ImageBoxes]:
        if self._forks:
            return self._pool.submit(_work, extractor, *image)
        return self._pool.submit(extractor, *image)  # type: ignore[arg-type]

    def close(self) -> None:
        """End the processes; what was submitted and not begun is not done. Again, it does nothing."""
        self._pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def opencv_in_one_thread() -> Iterator[None]:
    """OpenCV's own threads do not survive a fork: a worker that used or stopped them would wait for ever. So they
    are stopped before it, in the whole process, and the workers inherit a setting that needs none.
    """
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)


_kept: Workers | None = None


@contextlib.contextmanager
def kept_workers() -> Iterator[None]:
    """Let all evaluations share one pool, which is forked here.

    Commands enter it before they use CUDA: the less a process has, the sooner it is forked, and a fork of many
    processes is not done again for every split of every epoch. Within another one it does nothing.
    """
    global _kept
    if _kept is not None and _kept.process == os.getpid():
        yield
        return
    _kept = Workers()
    try:
        _kept.start()
        yield
    finally:
        _kept.close()
        _kept = None


class ExtractionPool:
    """The receiver of an evaluation's images: the workers that are kept, or its own.

    count: processes of its own, if they are wanted.

    `close` must be called, whatever happens: it ends its own workers, and OpenCV's number of threads, that of the
    whole process, is 1 meanwhile.
    """

    def __init__(self, extractor: BoxExtractor, count: int | None = None) -> None:
        self._extractor = extractor
        shared = _kept if count is None and _kept is not None and _kept.process == os.getpid() else None
        self._workers = shared or Workers(count)
        self._closing = contextlib.ExitStack()
        self._closing.enter_context(opencv_in_one_thread())
        if shared is None:
            self._closing.callback(self._workers.close)

    def submit(
        self, maps: NDArray, same_map: bool, truth: NDArray, judged: NDArray[np.uint8] | None
    ) -> Future[ImageBoxes]:
        return self._workers.submit(self._extractor, maps, same_map, truth, judged)

    def close(self) -> None:
        """Again, it does nothing."""
        self._closing.close()
