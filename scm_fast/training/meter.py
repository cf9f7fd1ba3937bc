"""Measure an epoch of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Meter:
    """Sums over the steps of an epoch, of all processes.

    sums: right answers, the loss and, if it has several terms, each, by name.
    """

    sums: dict[str, float] = field(default_factory=dict)
    images: int = 0
    seconds: float = 0.0

    def add(self, sums: Mapping[str, float], images: int, seconds: float) -> None:
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.images += images
        self.seconds += seconds

    def figures(self) -> dict[str, float]:
        means = {name: value / self.images for name, value in self.sums.items()}
        right = means.pop("right")
        return {
            **{f"train_{name}": mean for name, mean in means.items()},
            "train_top1": 100 * right,
            "images_per_second": self.images / max(self.seconds, 1e-9),
        }
