"""Find what is wrong with a run before anything is downloaded or computed."""

from __future__ import annotations

import logging

import torch

from .. import distributed
from ..data import DataSource
from ..data.order import check_global_batch
from .building import build_model
from .config import TrainConfig, batch_for
from .logs import check_tensorboard
from .machine import calibration_backend
from .run_folder import RunFolder

logger = logging.getLogger("scm_fast")
FEW_STEPS = 10  # per epoch


def resumes(config: TrainConfig) -> bool:
    """Tell whether to continue a run in the folder: it was asked for, or torchrun started one anew."""
    return config.resume == "auto" or any(distributed.gather(distributed.restarts() > 0))


def check_run(config: TrainConfig, source: DataSource, device: torch.device) -> None:
    """Raise an InputError for a run that would not come to its end. Opens all three splits."""
    assert config.out is not None
    if config.tensorboard:
        check_tensorboard()
    if config.calibrates:
        calibration_backend(config, device)
    distributed.on_first(RunFolder(config.out).check, config, resumes(config))
    count = len(source.split(config.train_split))
    assert config.global_batch is not None
    check_global_batch(count, config.global_batch, distributed.world_size())
    source.validation(config.val_split)
    source.split(config.test_split)
    steps = count // config.global_batch
    if steps < FEW_STEPS and config.global_batch != batch_for(count) and distributed.is_first():
        logger.warning(
            "an epoch has %d optimiser step%s only: with few images, a smaller --global-batch learns more",
            steps,
            "s" * (steps != 1),
        )


def check_model(config: TrainConfig, source: DataSource) -> None:
    """Raise an InputError if the model cannot be built, by building it."""
    build_model(config, source.split(config.train_split))
