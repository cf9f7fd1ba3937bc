"""Evaluation of the model in training: each epoch on the validation split, at the end on the test split."""

from __future__ import annotations

from pathlib import Path

import torch

from .. import distributed
from ..data import DataSource
from ..evaluation import EvaluationSettings, Predictor, Result, evaluate, summary, write_results
from ..models import load_model
from .config import TrainConfig


def validation_settings(config: TrainConfig) -> EvaluationSettings:
    """For the validation split, which chooses its own threshold unless that is fixed."""
    protocol = "maxbox" if config.protocol == "heldout" else config.protocol
    return EvaluationSettings(
        protocol, config.threshold, split=config.val_split, validation=True, workers=config.workers
    )


def final_settings(config: TrainConfig) -> EvaluationSettings:
    """For the test split, at the end."""
    return EvaluationSettings(
        config.protocol,
        config.threshold,
        split=config.test_split,
        val_split=config.val_split,
        workers=config.workers,
        report=config.report,
    )


def evaluate_kept_model(
    config: TrainConfig, source: DataSource, folder: Path, device: torch.device, amp: torch.dtype | None
) -> Result:
    """The test split's figures of a model that was kept, printed and written to `evaluation/` of the run."""
    predictor = Predictor(load_model(folder).to(device), device, amp=amp, name=str(folder))
    done = evaluate(predictor, source, final_settings(config))
    if distributed.is_first():
        out = folder.parent / "evaluation"
        write_results(out, done)
        print(summary(done, out))
    return done.result
