"""What a model gives: `TrainingOutput` in training mode, `Localization` in evaluation mode."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InputError


class TrainingOutput(NamedTuple):
    """The loss of a batch is the cross-entropy of the logits plus the sum of `terms`."""

    logits: Tensor  # (B, C)
    terms: dict[str, Tensor]  # what the method adds to the loss, by name; each a mean over the batch


class Localization(NamedTuple):
    """What a model in evaluation mode says about a batch."""

    logits: Tensor  # (B, C)
    attention: Tensor  # (B, H, W), the factor of the map that all classes share: often F0
    semantic: Tensor | None  # (B, C, H, W), the factor of each class: S0; None where the map is of no class
    tokens: Tensor  # (B, D, H, W), the patch tokens that the maps are made of

    def activation_map(self, classes: Tensor | None = None) -> Tensor:
        """attention * semantic[class] on the grid, for the predicted class if `classes` is None.

        classes: (B,) gives (B, H, W); (B, k), such as `logits.topk(k).indices`, gives (B, k, H, W).
        Without a semantic map it is the attention, whatever the class.
        """
        if classes is None:
            classes = self.logits.argmax(1)
        if not isinstance(classes, Tensor):
            raise InputError(f"classes must be a tensor of integers, got {type(classes).__name__}")
        batch, (height, width) = self.attention.shape[0], self.attention.shape[1:]
        if classes.ndim not in (1, 2) or classes.shape[0] != batch:
            raise InputError(
                f"classes must have shape ({batch},) or ({batch}, k), got {tuple(classes.shape)}"
            )
        self._check_range(classes)
        index = classes.view(batch, -1, 1, 1).expand(-1, -1, height, width)  # [B, k, H, W]
        attention = self.attention.unsqueeze(1)
        maps = (
            attention.expand(index.shape)
            if self.semantic is None
            else attention * self.semantic.gather(1, index)
        )
        return maps.squeeze(1) if classes.ndim == 1 else maps

    def _check_range(self, classes: Tensor) -> None:
        """On a GPU an index out of range would end the process's use of it; here it is an InputError."""
        if classes.is_floating_point() or classes.dtype == torch.bool:
            raise InputError(f"classes must be integers, got {classes.dtype}")
        if torch.compiler.is_compiling() or not classes.numel():
            return
        low, high = (int(value) for value in classes.aminmax())
        if low < 0 or high >= self.logits.shape[1]:
            wrong = low if low < 0 else high
            raise InputError(f"classes must be in 0 ... {self.logits.shape[1] - 1}, got {wrong}")
