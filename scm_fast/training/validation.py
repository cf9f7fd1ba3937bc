"""Evaluation of the model in training: each epoch on the validation split, at the end on the test split."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from .. import distributed
from ..data import DataSource, LocalizationDataset, build_evaluation_loader
from ..evaluation import Evaluator, Result, output, protocols
from ..evaluation.report import write_report
from ..evaluation.runner import Predictor, Run, check_classes, evaluate_split, evaluation_preprocessing
from ..evaluation.strategy import DEFAULT, Strategy
from ..models import LocalizationModel, load_model
from .config import TrainConfig

logger = logging.getLogger("scm_fast")
BATCH = 64


class SplitEvaluation:
    """A split, ready to be evaluated as often as one likes."""

    def __init__(
        self,
        config: TrainConfig,
        dataset: LocalizationDataset,
        model: LocalizationModel,
        device: torch.device,
    ) -> None:
        self.config = config
        self.dataset = dataset
        check_classes(model, self.dataset)
        self.loader = build_evaluation_loader(
            self.dataset,
            evaluation_preprocessing(model),
            batch_size=BATCH,
            workers=config.workers,
            device=device,
            skip_bad_images=config.skip_bad_images,
        )

    def run(self, predictor: Predictor) -> Run:
        fixed = () if self.config.threshold is None else (self.config.threshold,)
        evaluator = Evaluator(**protocols.settings(self.config.protocol), fixed=fixed)
        return evaluate_split(predictor, self.dataset, self.loader, evaluator)

    def result(self, run: Run) -> Result:
        """Figures of a split that chooses its own threshold, unless that is fixed."""
        if self.config.threshold is not None:
            return protocols.fixed(run.evaluation, self.config.threshold)
        if self.config.protocol == "published":
            return protocols.published(run.evaluation)
        return protocols.maxbox(run.evaluation)


def make_predictor(model: LocalizationModel, device: torch.device, amp: torch.dtype | None) -> Predictor:
    return Predictor(model, device, Strategy.parse(DEFAULT), amp)


def evaluate_kept_model(
    config: TrainConfig, source: DataSource, folder: Path, device: torch.device, amp: torch.dtype | None
) -> Result:
    """The test split's figures of a model that was kept, printed and written to `evaluation/` of the run."""
    model = load_model(folder).to(device)
    predictor = make_predictor(model, device, amp)
    test = SplitEvaluation(config, source.split(config.test_split), model, device)
    run = test.run(predictor)
    if config.protocol == "heldout" and test.dataset.records.has_boxes:
        chosen = SplitEvaluation(config, source.split(config.val_split), model, device)
        if chosen.dataset.records.has_boxes:
            result = protocols.heldout(run.evaluation, chosen.run(predictor).evaluation)
        else:
            logger.warning("no boxes in split %s: no held-out threshold", config.val_split)
            result = protocols.maxbox(run.evaluation)
    else:
        result = test.result(run)
    if distributed.is_first():
        about = output.describe(predictor, folder, config.data, config.test_split)
        out = folder.parent / "evaluation"
        output.write_all(out, result, run, about)
        if config.report:
            write_report(out / "report.html", result, run, predictor, about)
        print(output.summary(result, run, out))
    return result
