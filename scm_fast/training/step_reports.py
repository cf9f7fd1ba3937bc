"""Reports of optimiser steps, read from a GPU without keeping it waiting.

A step is queued on the device in full before its figures are asked for, and on a GPU those of the step before it
are read then: one wait a step, while there is work queued. On the CPU nothing is queued, and the figures of a
step are read at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepReport:
    """A step, and its figures where they were computed.

    step, epoch, rate: its number in the run, its epoch, its learning rate.
    indices: this process's images, by their places in the data set.
    begin: when it began, by `time.perf_counter`.
    """

    step: int
    epoch: int
    rate: float
    indices: list[int]
    begin: float
    names: tuple[str, ...]
    values: Tensor  # (len(names),)
    arrived: torch.cuda.Event | None = None  # when the values are on the CPU

    def sent(self) -> StepReport:
        """The same report with its figures on the way to the CPU."""
        if not self.values.is_cuda:
            return self
        values = self.values.to("cpu", non_blocking=True)  # pinned: the copy is queued as a kernel is
        arrived = torch.cuda.Event()
        arrived.record()
        return replace(self, values=values, arrived=arrived)

    def figures(self) -> dict[str, float]:
        """Wait for the figures if they have not arrived, and return them by name."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return dict(zip(self.names, self.values.tolist(), strict=True))


class StepReports:
    """The reports of the last steps, oldest first.

    delay: how many of them are left unread, as long as nobody wants all.
    """

    def __init__(self, device: torch.device) -> None:
        self.delay = 1 if device.type == "cuda" else 0
        self._waiting: deque[StepReport] = deque()

    def add(self, report: StepReport) -> None:
        self._waiting.append(report.sent())

    def ready(self) -> Iterator[StepReport]:
        """Take out those that a later step has been queued behind."""
        while len(self._waiting) > self.delay:
            yield self._waiting.popleft()

    def all(self) -> Iterator[StepReport]:
        """Take out every one."""
        while self._waiting:
            yield self._waiting.popleft()
