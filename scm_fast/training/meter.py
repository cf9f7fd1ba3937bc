"""How an epoch of training went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Meter:
    """Sums over the steps of an epoch, of all processes."""

    loss: float = 0.0
    right: float = 0.0
    images: int = 0
    seconds: float = 0.0

    def figures(self) -> dict[str, float]:
        return {
            "train_loss": self.loss / self.images,
            "train_top1": 100 * self.right / self.images,
            "images_per_second": self.images / max(self.seconds, 1e-9),
        }
