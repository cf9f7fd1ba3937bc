"""Decide which process sees which image when.

Both orders are functions of their arguments alone. The training order of a global batch does not depend on
how many processes share it, so a run may be resumed on another number of them, at any step of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import InputError

Key = tuple[int, int]  # (epoch, index): the epoch seeds the image's augmentation


def check_global_batch(count: int, global_batch: int, world: int = 1) -> None:
    """Raise an InputError if `count` images and `world` processes do not go with the global batch."""
    if count < world:
        raise InputError(f"{count} training images are too few for {world} processes")
    if global_batch < world:
        raise InputError(f"a global batch of {global_batch} images is too small for {world} processes")
    if count < global_batch:
        fitting = 2 ** max(0, (count // 4).bit_length() - 1)
        raise InputError(
            f"{count} training images do not fill one global batch of {global_batch}; "
            f"give a smaller one, such as --global-batch {max(fitting, world)}"
        )


class TrainOrder:
    """Micro-batches of this process: each global batch is dealt out to the processes, then cut evenly.

    count: images in the data set. Each epoch is a permutation of them, drawn from (seed, epoch); images
        beyond the last whole global batch sit out that epoch.
    global_batch: images per optimiser step, over all processes. It need not divide by `world`: shares then
        differ by one image, and a mean over the global batch must weigh processes by their images.
    micro_batch: at most this many images at once; None for the whole share.

    epoch, step: where the next iteration starts. Every process makes `micro_batches` batches per step.
    """

    def __init__(
        self,
        count: int,
        global_batch: int,
        micro_batch: int | None = None,
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        check_global_batch(count, global_batch, world)
        if micro_batch is not None and micro_batch < 1:
            raise InputError(f"micro_batch={micro_batch}: must be at least 1")
        self.count, self.global_batch, self.seed = count, global_batch, seed
        self.rank, self.world = rank, world
        largest_share, smallest_share = -(-global_batch // world), global_batch // world
        self.micro_batches = -(-largest_share // (micro_batch or largest_share))
        # An empty micro-batch would have no loss: with shares of n and n - 1 images, at most n - 1 parts.
        self.micro_batches = min(self.micro_batches, smallest_share)
        self.steps = count // global_batch
        self.epoch = 0
        self.step = 0

    def __len__(self) -> int:
        return (self.steps - self.step) * self.micro_batches

    def __iter__(self) -> Iterator[list[Key]]:
        epoch = self.epoch
        order = np.random.default_rng([self.seed, epoch]).permutation(self.count)
        for step in range(self.step, self.steps):
            whole = order[step * self.global_batch : (step + 1) * self.global_batch]
            for part in np.array_split(whole[self.rank :: self.world], self.micro_batches):
                yield [(epoch, index) for index in part.tolist()]


class EvaluationOrder:
    """Every image once, to exactly one process; nothing is repeated to even out the shares."""

    def __init__(self, count: int, batch_size: int, *, rank: int = 0, world: int = 1) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size}: must be at least 1")
        self._indices = range(rank, count, world)
        self._batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self._indices) // self._batch_size)

    def __iter__(self) -> Iterator[list[Key]]:
        for start in range(0, len(self._indices), self._batch_size):
            yield [(0, index) for index in self._indices[start : start + self._batch_size]]
