"""`Stopwatch`: what an evaluation takes, apart from reading the images."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from .. import distributed


class Stopwatch:
    """Sums what is done `with` it, by the clock on the wall and by the CPU.

    CPU time is that of all threads, and of the processes that ended meanwhile, such as those that extract boxes.
    Other programs on the same cores hardly change it.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cpu_seconds = 0.0

    def __enter__(self) -> None:
        self._begin = time.perf_counter(), _cpu_seconds()

    def __exit__(self, *exception: object) -> None:
        self.seconds += time.perf_counter() - self._begin[0]
        self.cpu_seconds += _cpu_seconds() - self._begin[1]

    def per_image(self, images: int, device: torch.device) -> dict[str, Any]:
        """For metrics.json: of all processes together, with the conditions. Collective."""
        parts = distributed.gather((self.seconds, self.cpu_seconds))
        count = max(1, images)
        return {
            "seconds_per_image": max(seconds for seconds, _ in parts) / count,
            "cpu_seconds_per_image": sum(cpu for _, cpu in parts) / count,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "threads": torch.get_num_threads(),
            "processes": len(parts),
        }


def _cpu_seconds() -> float:
    children = os.times()
    return time.process_time() + children.children_user + children.children_system
