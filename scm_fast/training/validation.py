"""Evaluation of the model in training: each epoch on the validation split, at the end on the test split."""

from __future__ import annotations

from pathlib import Path

import torch

from .. import distributed
from ..data import DataSource
from ..evaluation import (
    EvaluationSettings,
    Predictor,
    Result,
    SplitMetrics,
    evaluate,
    summary,
    write_results,
)
from ..models import load_model
from ..threshold import Threshold, make_threshold
from .config import TrainConfig


def validation_settings(config: TrainConfig) -> EvaluationSettings:
    """Return settings for the validation split, which chooses its own threshold unless that is fixed."""
    return EvaluationSettings(
        config.protocol,
        _threshold(config),
        config.rule,
        split=config.val_split,
        val_split=config.val_split,
        validation=True,
        workers=config.workers,
    )


def final_settings(config: TrainConfig) -> EvaluationSettings:
    """Return settings for the test split, at the end."""
    return EvaluationSettings(
        config.protocol,
        _threshold(config),
        config.rule,
        split=config.test_split,
        val_split=config.val_split,
        workers=config.workers,
        report=config.report,
    )


def _threshold(config: TrainConfig) -> Threshold | None:
    return None if config.threshold is None else make_threshold(config.threshold)


def evaluate_kept_model(
    config: TrainConfig,
    source: DataSource,
    folder: Path,
    device: torch.device,
    amp: torch.dtype | None,
    validation: SplitMetrics | None = None,
) -> Result:
    """The test split's figures of a model that was kept, printed and written to `evaluation/` of the run.

    validation: what it makes of the validation split, if that is known.
    """
    predictor = Predictor(load_model(folder).to(device), device, amp=amp, name=str(folder))
    done = evaluate(predictor, source, final_settings(config), validation)
    if distributed.is_first():
        out = folder.parent / "evaluation"
        write_results(out, done)
        print(summary(done, out))
    return done.result
