"""Optimiser and learning rate."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..models import LocalizationModel
from ..models.layers import parameter_layers
from .config import TrainConfig


def build_optimizer(model: LocalizationModel, config: TrainConfig) -> AdamW:
    """AdamW with a group for each learning rate and weight decay; the first group has the learning rate `lr`."""
    spared = model.no_weight_decay()
    rates = _rates(model, config)
    groups: dict[tuple[float, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = bool(config.decay_all) or (parameter.ndim > 1 and name not in spared)
            groups[rates[name], decays].append(parameter)
    assert config.betas is not None
    # What decays comes first of each rate, and `lr` itself before the others.
    order = sorted(groups, key=lambda group: (group[0] != config.lr, group[0], not group[1]))
    return AdamW(
        [
            {
                "params": groups[rate, decays],
                "lr": rate,
                "weight_decay": config.weight_decay if decays else 0.0,
            }
            for rate, decays in order
        ],
        betas=config.betas,
        # One kernel for all parameters, which can leave a step out without the CPU knowing; see `step_unless`.
        fused=next(model.parameters()).is_cuda,
    )


def step_unless(bad: Tensor, optimizer: AdamW) -> None:
    """Step, or where `bad` () is true change nothing. A GPU that decides this is not waited for."""
    if optimizer.param_groups[0]["fused"]:
        optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
    elif bad:
        optimizer.zero_grad()  # what has no gradient is left as it is
    optimizer.step()


def load_optimizer(optimizer: AdamW, state: dict[str, Any]) -> None:
    """Load what `state_dict` gave, maybe on another device: how a step is computed is left as it is."""
    fused = optimizer.param_groups[0]["fused"]
    groups = [{**group, "fused": fused} for group in state["param_groups"]]
    optimizer.load_state_dict({**state, "param_groups": groups})


def _rates(model: LocalizationModel, config: TrainConfig) -> dict[str, float]:
    """The highest learning rate of each parameter, by its name.

    The calibration's parameters have `lr`: they are few numbers that start where the paper wants them.
    """
    layers = parameter_layers(model) if config.layer_decay < 1 else {}
    last = max(layers.values(), default=0)
    rates = {}
    for name, _ in model.named_parameters():
        rate = config.lr * config.layer_decay ** (last - layers.get(name, last))
        if config.head_lr is not None and not name.startswith(("backbone.", "calibration.")):
            rate = config.head_lr
        rates[name] = rate
    return rates


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
