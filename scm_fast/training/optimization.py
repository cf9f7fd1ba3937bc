"""Optimiser and learning rate."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..models import LocalizationModel
from .config import TrainConfig


def build_optimizer(model: LocalizationModel, config: TrainConfig) -> AdamW:
    """AdamW with the parameters that decay in one group and the others in another."""
    spared = model.no_weight_decay()
    decaying: list[nn.Parameter] = []
    other: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        decays = config.decay_all or (parameter.ndim > 1 and name not in spared)
        (decaying if decays else other).append(parameter)
    assert config.betas is not None
    groups: list[dict[str, Any]] = [
        {"params": decaying, "weight_decay": config.weight_decay},
        {"params": other, "weight_decay": 0.0},
    ]
    return AdamW([group for group in groups if group["params"]], lr=config.lr, betas=config.betas)


def build_scheduler(optimizer: Optimizer, config: TrainConfig, steps_per_epoch: int) -> LambdaLR:
    """Linear rise over the warm-up, then half a cosine down to `min_lr`; stepped with the optimiser."""
    total = config.epochs * steps_per_epoch
    warmup = round(config.warmup_epochs * steps_per_epoch)
    floor = config.min_lr / config.lr

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        progress = (step - warmup) / max(total - warmup, 1)
        return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2

    return LambdaLR(optimizer, factor)
