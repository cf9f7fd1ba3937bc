"""Weights to start from, where there are none: a run that trains the CLS token's classifier comes first."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from .. import distributed
from ..data import DataSource
from .checks import check_model, check_run
from .config import TrainConfig, make_config
from .trainer import Trainer

logger = logging.getLogger("scm_fast")
FOLDER = "pretraining"  # in the run folder


def pretrain(config: TrainConfig, device: torch.device, source: DataSource) -> Path | None:
    """Carry out the pretraining that `config` asks for; gives the model to start from, None if it asks for none.

    It is a run of its own, in a folder of the run folder: logged, checkpointed and resumed like any other. What
    is wrong with the run that comes after it is found out first.
    """
    if not config.pretraining:
        return None
    check_run(config, source, device)
    check_model(config, source)
    first = pretraining_config(config)
    assert first.out is not None
    if distributed.is_first():
        logger.warning(
            "first a network to start from: %d epochs of method cls in %s", first.epochs, first.out
        )
    trainer = Trainer(first, device, source if first.source() == source else None)
    trainer.fit()
    return trainer.folder.path / trainer.kept_model()


def pretraining_config(config: TrainConfig) -> TrainConfig:
    """The run that comes first: `config` with method cls, its best model by classification, and its own options."""
    assert config.out is not None
    own: dict[str, Any] = {
        "method": "cls",
        "method_options": {},
        "calibration": {},
        "frozen_blocks": None,  # nothing is worth keeping yet
        "best_metric": "top1_cls",
        "out": str(Path(config.out) / FOLDER),
    }
    return make_config(config.as_dict() | own | {"pretraining": {}} | config.pretraining, "pretraining")
