"""Running a model over a split: images in, an `Evaluation` out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from .. import distributed
from ..data import EvaluationLoader, LocalizationDataset, Preprocessing, Problem
from ..errors import InputError
from ..models import Localization, LocalizationModel
from .evaluation import Evaluation
from .evaluator import TOP, Evaluator
from .pixels import read_masks
from .strategy import Strategy


@dataclass(frozen=True)
class Run:
    """A split that was evaluated."""

    dataset: LocalizationDataset
    evaluation: Evaluation
    left_out: list[Problem]  # images that could not be used, of all processes
    seconds: float

    @property
    def images_per_second(self) -> float:
        return len(self.evaluation) / max(self.seconds, 1e-9)


@dataclass
class Predictor:
    """Predictions with the activation maps of chosen classes, in the wanted precision."""

    model: LocalizationModel
    device: torch.device
    strategy: Strategy
    amp: torch.dtype | None = None

    @torch.inference_mode()
    def __call__(self, images: Tensor, choose: Callable[[Tensor], Tensor]) -> tuple[Localization, Tensor]:
        """`choose` makes the classes (B, k) from the logits (B, C); gives their maps (B, k, H, W)."""
        with torch.autocast(self.device.type, dtype=self.amp, enabled=self.amp is not None):
            localization = self.model(images)
        classes = choose(localization.logits)
        return localization, self.strategy.maps(self.model, localization, classes)


def evaluation_preprocessing(model: LocalizationModel) -> Preprocessing:
    """Images squashed to the size that the model takes, normalised as its backbone was trained."""
    config = model.config
    height, width = config.image_size
    mean, std = tuple(config.mean), tuple(config.std)
    return Preprocessing((height, width), None, mean, std)  # type: ignore[arg-type]  # three channels each


def check_classes(model: LocalizationModel, dataset: LocalizationDataset) -> None:
    if model.config.num_classes != dataset.num_classes:
        raise InputError(
            f"the checkpoint has {model.config.num_classes} classes, {dataset.root} has {dataset.num_classes}"
        )


def evaluate_split(
    predictor: Predictor, dataset: LocalizationDataset, loader: EvaluationLoader, evaluator: Evaluator
) -> Run:
    """Evaluate this process's share and merge; every process returns the figures of the whole split."""
    check_classes(predictor.model, dataset)
    world = distributed.world_size()
    begin = time.perf_counter()
    # Shares differ by one image at most, so this process's progress is that of all.
    with tqdm(
        total=len(dataset),
        desc=dataset.split,
        unit=" images",
        disable=None if distributed.is_first() else True,
        leave=False,
    ) as progress:
        for batch in loader:

            def label_and_best(logits: Tensor, labels: Tensor = batch.labels) -> Tensor:
                return torch.stack([labels, logits.argmax(1)], dim=1)

            localization, maps = predictor(batch.images, label_and_best)
            scores, classes = localization.logits.float().softmax(1).topk(min(TOP, dataset.num_classes))
            indices = batch.indices.tolist()
            records = [dataset.records[index] for index in indices]
            evaluator.accumulate(
                index=indices,
                label=batch.labels.cpu(),
                top_class=classes.cpu(),
                top_score=scores.cpu(),
                maps=maps.float().cpu().numpy(),
                boxes=[record.boxes for record in records],
                image_size=[dataset.size(index) for index in indices],
                masks=[
                    read_masks(record.masks, record.ignore_mask, evaluator.size) if record.masks else None
                    for record in records
                ],
            )
            progress.update(min(len(indices) * world, len(dataset) - progress.n))
        evaluation = evaluator.compute()
    left_out = [*dataset.left_out, *_gather_problems(list(loader.left_out.values()))]
    return Run(dataset, evaluation, left_out, time.perf_counter() - begin)


def _gather_problems(problems: list[Problem]) -> list[Problem]:
    """Those of all processes."""
    return sorted((problem for part in distributed.gather(problems) for problem in part), key=str)
