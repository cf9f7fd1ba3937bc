"""Loaders: batches on the device, the same whatever the number of workers and processes.

An image's augmentation is drawn from (seed, epoch, index) and nothing else, and loading leaves the global
random state alone. So batches do not depend on workers, processes or resumption.
"""

from __future__ import annotations

import atexit
import functools
import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.synchronize import Event

import torch
from torch.utils.data import DataLoader

from .. import distributed
from ..errors import InputError
from .batches import Batch, PreparedImages, collate
from .cache import DecodedCache
from .dataset import LocalizationDataset
from .order import EvaluationOrder, TrainOrder
from .preprocessing import Preprocessing
from .records import Problem

logger = logging.getLogger(__name__)
ADVICE = "`scm-fast check-data` lists all such images, and --skip-bad-images leaves them out"


class EvaluationLoader:
    """Iterates over this process's share of a data set. `left_out` collects images that could not be read."""

    def __init__(
        self, loader: DataLoader, preprocessing: Preprocessing, device: torch.device, skip_bad_images: bool
    ) -> None:
        self._loader, self._preprocessing, self.device = loader, preprocessing, device
        self._skip_bad_images = skip_bad_images
        self.left_out: dict[str, Problem] = {}

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            self._note(batch.problems)
            if len(batch.labels):
                yield self._on_device(batch)

    def _note(self, problems: list[Problem]) -> None:
        if problems and not self._skip_bad_images:
            raise InputError("\n".join([*map(str, problems), ADVICE]))
        for problem in problems:
            assert problem.record_id is not None
            if problem.record_id not in self.left_out:
                logger.warning("left out %s", problem)
            self.left_out[problem.record_id] = problem

    def _on_device(self, batch: Batch) -> Batch:
        # Pinned memory, from which a copy may overlap the computation, exists for CUDA alone.
        overlaps = self.device.type == "cuda"
        images = self._preprocessing.normalize(batch.images.to(self.device, non_blocking=overlaps))
        labels = batch.labels.to(self.device, non_blocking=overlaps)
        return Batch(images, labels, batch.indices, batch.ends_step, batch.problems)


class TrainLoader(EvaluationLoader):
    """Iterates over the rest of an epoch, then moves on to the next.

        for epoch in range(loader.epoch, epochs):
            for batch in loader:
                ...                                   # accumulate; step the optimiser if batch.ends_step
                state = loader.state_dict()           # continues after the last whole step

    steps: optimiser steps per epoch. micro_batches: batches per step.
    """

    def __init__(
        self,
        loader: DataLoader,
        preprocessing: Preprocessing,
        device: torch.device,
        skip_bad_images: bool,
        order: TrainOrder,
    ) -> None:
        super().__init__(loader, preprocessing, device, skip_bad_images)
        self._order = order
        self.steps, self.micro_batches = order.steps, order.micro_batches
        self.epoch = 0
        self.step = 0  # whole steps of the epoch that were handed out

    def __len__(self) -> int:
        """Batches that are left of the epoch."""
        return (self.steps - self.step) * self.micro_batches

    def __iter__(self) -> Iterator[Batch]:
        self._order.epoch, self._order.step = self.epoch, self.step
        for number, batch in enumerate(self._loader, 1):
            self._note(batch.problems)
            if not len(batch.labels):
                raise InputError("no readable training image is left")
            batch.ends_step = number % self.micro_batches == 0
            if batch.ends_step:
                self.step += 1
            yield self._on_device(batch)
        self.epoch, self.step = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Position for `load_state_dict`. Micro-batches of a step that is not complete are done again."""
        finished = self.step == self.steps
        return {
            "epoch": self.epoch + finished,
            "step": 0 if finished else self.step,
            "seed": self._order.seed,
            "images": self._order.count,
            "global_batch": self._order.global_batch,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        own = self.state_dict()
        for name in ("seed", "images", "global_batch"):
            if state[name] != own[name]:
                raise InputError(f"cannot resume: {name} was {state[name]} and is now {own[name]}")
        self.epoch, self.step = state["epoch"], state["step"]


def build_train_loader(
    dataset: LocalizationDataset,
    preprocessing: Preprocessing,
    *,
    global_batch: int,
    micro_batch: int | None = None,
    seed: int = 0,
    process: tuple[int, int] | None = None,
    workers: int | None = None,
    device: torch.device | str = "cpu",
    cache: DecodedCache | None = None,
    skip_bad_images: bool = False,
) -> TrainLoader:
    """Shuffled, augmented batches of this process.

    global_batch, micro_batch: see `TrainOrder`.
    process: its rank and the number of processes; taken from torch.distributed if None.
    workers: processes that decode; by default as many as the cores allow, none for in-memory data.
    skip_bad_images: an image that cannot be read is replaced by the next one, and listed in `left_out`.
    """
    rank, world = process or (distributed.rank(), distributed.world_size())
    device = torch.device(device)
    order = TrainOrder(len(dataset), global_batch, micro_batch, seed=seed, rank=rank, world=world)
    images = PreparedImages(dataset, preprocessing, seed, cache, replace_bad=skip_bad_images)
    loader = _data_loader(images, order, workers, device)
    return TrainLoader(loader, preprocessing, device, skip_bad_images, order)


def build_evaluation_loader(
    dataset: LocalizationDataset,
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    process: tuple[int, int] | None = None,
    workers: int | None = None,
    device: torch.device | str = "cpu",
    cache: DecodedCache | None = None,
    skip_bad_images: bool = False,
) -> EvaluationLoader:
    """Each image of the data set once, in exactly one process, in order.

    skip_bad_images: an image that cannot be read is in no batch, and listed in `left_out`.
    The other arguments are those of `build_train_loader`.
    """
    rank, world = process or (distributed.rank(), distributed.world_size())
    device = torch.device(device)
    order = EvaluationOrder(len(dataset), batch_size, rank=rank, world=world)
    images = PreparedImages(dataset, preprocessing, 0, cache, replace_bad=False)
    loader = _data_loader(images, order, workers, device)
    return EvaluationLoader(loader, preprocessing, device, skip_bad_images)


def _data_loader(
    images: PreparedImages, order: TrainOrder | EvaluationOrder, workers: int | None, device: torch.device
) -> DataLoader:
    if images.cache is not None:
        images.cache.check(images.dataset, images.preprocessing.size)
    if workers is None:
        workers = 0 if images.dataset.in_memory else default_workers(device)
    if workers < 0:
        raise InputError(f"workers={workers}: must be 0, for no loading processes, or more")
    return DataLoader(
        images,
        batch_sampler=order,  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=collate,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
        generator=torch.Generator().manual_seed(images.seed),  # otherwise it would draw from the global one
        worker_init_fn=functools.partial(_leave_signals_to_the_parent, _exiting()) if workers else None,
    )


@functools.cache
def _exiting() -> Event:
    """Set when this process exits, before multiprocessing ends the workers that are left with SIGTERM."""
    event = multiprocessing.Event()
    atexit.register(event.set)
    return event


def _leave_signals_to_the_parent(exiting: Event, worker: int) -> None:
    """Ctrl-C in a terminal and SIGTERM of a scheduler reach the workers too. What to do about it is up to the
    process that they work for: a training run still finishes its step, and needs them for that. They end when
    it ends them, or within seconds of its death, which DataLoader has them look out for."""

    def end_with_the_parent(number: int, frame: object) -> None:
        if exiting.is_set():
            os._exit(0)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end_with_the_parent)


def default_workers(device: torch.device) -> int:
    """Decoding processes per training process: its share of the cores, half of it if the model runs on them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(8, share // 2 if device.type == "cpu" else share))
