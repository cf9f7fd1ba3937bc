"""A moving average of the weights: what a run keeps as its model, if it is asked to."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ..models import LocalizationModel

WARMUP = 10  # steps; an average over fewer forgets faster, or it would long stay near the first weights


class WeightAverage:
    """A moving average: after step t, average += (1 - min(decay, t / (t + WARMUP))) (weights - average)."""

    def __init__(self, model: LocalizationModel, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: LocalizationModel, step: int) -> None:
        """Update with the weights after the step of that number, from 1 on."""
        share = 1 - min(self.decay, step / (step + WARMUP))
        mine: list[Tensor] = list(self.model.parameters())
        torch._foreach_lerp_(mine, list[Tensor](model.parameters()), share)
        for average, current in zip(self.model.buffers(), model.buffers(), strict=True):
            average.copy_(current)
