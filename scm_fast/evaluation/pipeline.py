"""`evaluate`: from a model and a data source to the figures of a split, under a protocol.

Everything that evaluates goes through it: `scm-fast evaluate`, the validation of each epoch in training, and
the test split at its end.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import torch
from numpy.typing import NDArray
from torch import Tensor

import scm_fast

from .. import distributed
from ..data import Batch, DataSource, LocalizationDataset, Problem, build_evaluation_loader
from ..errors import InputError
from ..progress import tqdm
from ..threshold import (
    BEST,
    FEW_WITH_BOXES,
    Threshold,
    check_rule,
    protocol_to_use,
    rules_to_choose,
    token_separation,
)
from .classes import match_classes
from .emptiness import confidence
from .evaluator import Evaluator
from .metrics import TOP, SplitMetrics
from .pixels import read_masks
from .predictor import Predictor
from .protocols import PROTOCOLS, check_protocol, result_under
from .report.gallery import choose_examples
from .results import ImageMaps, SplitResult

logger = logging.getLogger("scm_fast")


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings: the split that is evaluated, and how.

    protocol: see `protocols`.
    threshold: for protocol `fixed`.
    rule: of the threshold that `heldout` chooses; `best` for the best of all.
    split, val_split: the one whose figures are wanted, and the one on which `heldout` and `unboxed` choose.
    validation: whether `split` is looked at to choose by it, as in training: then it may have pseudo-boxes.
    step: distance of the global thresholds that are tried, unless the protocol prescribes it.
    batch_size: images per process.
    workers: loading processes; None for as many as the cores allow.
    report: whether there will be one, which shows the maps of some images: they are kept for it.
    all_maps: for a report that shows several results: keep the maps of all images, to choose from later.
    """

    protocol: str = "heldout"
    threshold: Threshold | None = None
    rule: str = BEST
    split: str = "test"
    val_split: str = "val"
    validation: bool = False
    step: float = 0.001
    batch_size: int = 64
    workers: int | None = None
    report: bool = False
    all_maps: bool = False

    def __post_init__(self) -> None:
        check_protocol(self.protocol)
        check_rule(self.rule, rules_to_choose())
        if (self.threshold is None) == (self.protocol == "fixed"):
            raise InputError("a threshold and protocol fixed go together")


def evaluate(
    predictor: Predictor,
    source: DataSource,
    settings: EvaluationSettings,
    validation: SplitMetrics | None = None,
) -> SplitResult:
    """The figures of a split. All processes call it together; each evaluates its share and knows the whole.

    validation: what this model makes of the validation split, if that is known already.

    Without boxes in the validation split `heldout` cannot choose. Then it is `unboxed`, which the result says, and
    a warning if there are figures that it changes. Without such a split the evaluated images choose.
    """
    given = source.validation(settings.split) if settings.validation else source.split(settings.split)
    dataset = _with_classes_of(predictor, given)
    protocol, held_out = settings.protocol, None
    if protocol in ("heldout", "unboxed"):
        held_out = _held_out(source, settings)
        protocol = protocol_to_use(protocol, held_out is not None and held_out.records.has_boxes)
        if protocol != settings.protocol and dataset.records.has_boxes:
            _warn(f"protocol unboxed instead of heldout: there are no boxes in split {settings.val_split}")
    if held_out is None or held_out is given:
        validation = None
    else:
        held_out = _with_classes_of(predictor, held_out)
        validation = validation or _predict_split(predictor, held_out, source, settings).metrics
        with_boxes = int(validation.has_boxes.sum())
        if protocol == "heldout" and with_boxes < FEW_WITH_BOXES:
            _warn(f"the threshold is a loose choice: only {with_boxes} held-out images have boxes")
    maps: dict[int, ImageMaps] | None = {} if settings.report else None
    predicted = _predict_split(predictor, dataset, source, settings, maps)
    if blank := predicted.metrics.blank_maps:
        _warn(f"{blank} images of split {dataset.split} have a map that is constant or not of finite numbers")
    validation = validation or predicted.metrics
    result = result_under(protocol, predicted.metrics, validation, settings.threshold, settings.rule)
    unboxed = result_under("unboxed", predicted.metrics, validation) if protocol == "heldout" else None
    names = predictor.class_names if predictor.foreign_classes else dataset.class_names
    done = SplitResult(dataset, names, *predicted, result, _about(predictor, source, settings), unboxed)
    if maps is not None:
        done.maps = _gathered_maps(done, maps, settings.all_maps)
    return done


def _held_out(source: DataSource, settings: EvaluationSettings) -> LocalizationDataset | None:
    """The validation split, which may be the evaluated one; None if there is none or it is empty."""
    if source.val_boxes is None and not source.has_split(settings.val_split):
        return None
    held_out = source.validation(settings.val_split)
    return held_out if len(held_out) else None


def _warn(sentence: str) -> None:
    if distributed.is_first():
        logger.warning(sentence)


def _with_classes_of(predictor: Predictor, dataset: LocalizationDataset) -> LocalizationDataset:
    """The data set with labels that are the model's, unless the model has classes of its own."""
    return dataset if predictor.foreign_classes else match_classes(predictor.model, dataset)


class _Stopwatch:
    """Sums what is done `with` it, which is all but reading the images: the time that passed, and that of the CPU.

    CPU time is that of all threads; that of the processes that extract boxes is added. Waiting for a core that
    another program has is not in it.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cpu_seconds = 0.0

    def __enter__(self) -> None:
        self._begin = time.perf_counter(), time.process_time()

    def __exit__(self, *exception: object) -> None:
        self.seconds += time.perf_counter() - self._begin[0]
        self.cpu_seconds += time.process_time() - self._begin[1]

    def per_image(self, images: int, device: torch.device) -> dict[str, Any]:
        """Return the times for metrics.json: of all processes together, with the conditions. Collective."""
        parts = distributed.gather((self.seconds, self.cpu_seconds))
        count = max(1, images)
        return {
            "seconds_per_image": max(seconds for seconds, _ in parts) / count,
            "cpu_seconds_per_image": sum(cpu for _, cpu in parts) / count,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "threads": torch.get_num_threads(),
            "processes": len(parts),
        }


class _Predicted(NamedTuple):
    metrics: SplitMetrics
    left_out: list[Problem]
    seconds: float
    timing: dict[str, Any]


def _predict_split(
    predictor: Predictor,
    dataset: LocalizationDataset,
    source: DataSource,
    settings: EvaluationSettings,
    maps: dict[int, ImageMaps] | None = None,
) -> _Predicted:
    """One pass over a split. `maps` receives those of this process's images."""
    prescribed = PROTOCOLS[settings.protocol]
    loader = build_evaluation_loader(
        dataset,
        predictor.preprocessing,
        batch_size=settings.batch_size,
        workers=settings.workers,
        device=predictor.device,
        skip_bad_images=source.skip_bad_images,
    )
    begin, stopwatch = time.perf_counter(), _Stopwatch()
    with (
        Evaluator(
            prescribed.step or settings.step,
            interpolation=prescribed.interpolation,
            num_classes=predictor.model.config.num_classes,
        ) as evaluator,
        # Shares differ by one image at most, so this process's progress is that of all.
        tqdm(
            total=len(dataset),
            desc=dataset.split,
            unit=" images",
            disable=None if distributed.is_first() else True,
            leave=False,
        ) as progress,
    ):
        for batch in loader:
            with stopwatch:
                _accumulate(evaluator, predictor, dataset, batch, maps)
            count = len(batch.indices) * distributed.world_size()
            progress.update(min(count, len(dataset) - progress.n))
        with stopwatch:
            metrics = evaluator.compute()
        stopwatch.cpu_seconds += evaluator.worker_seconds
        metrics.pseudo_boxes = dataset.pseudo_boxes
        metrics.prescribed = predictor.prescribed_threshold
        metrics.foreign_classes = predictor.foreign_classes
    unread = [problem for part in distributed.gather(loader.left_out) for problem in part.values()]
    left_out = [*dataset.left_out, *sorted(unread, key=str)]
    timing = {**stopwatch.per_image(len(metrics), predictor.device), "batch_size": settings.batch_size}
    return _Predicted(metrics, left_out, time.perf_counter() - begin, timing)


def _accumulate(
    evaluator: Evaluator,
    predictor: Predictor,
    dataset: LocalizationDataset,
    batch: Batch,
    maps: dict[int, ImageMaps] | None,
) -> None:
    """Run the model on a batch, and hand what it says to the evaluator."""

    def classes_to_map(logits: Tensor) -> Tensor:
        """The label and the best class (B, 2), or where labels have no map the best class alone (B, 1)."""
        best = logits.argmax(1)
        return torch.stack([best] if predictor.foreign_classes else [batch.labels, best], dim=1)

    localization, activation = predictor(batch.images, classes_to_map)
    activation = activation.expand(-1, 2, -1, -1)
    scores, classes = localization.top(TOP)
    indices = batch.indices.tolist()
    records = [dataset.records[index] for index in indices]
    size = evaluator.cuts.size
    activations = activation.cpu().numpy()
    evaluator.accumulate(
        index=indices,
        label=batch.labels.cpu(),
        top_class=classes.cpu(),
        top_score=scores.cpu(),
        maps=activations,
        boxes=[record.boxes for record in records],
        image_size=[dataset.size(index) for index in indices],
        masks=[read_masks(r.masks, r.ignore_mask, size) if r.masks else None for r in records],
        separation=token_separation(activations[:, 1], localization.tokens),
        confidence=confidence(localization.logits).cpu(),
    )
    if maps is not None:
        attention = localization.attention.cpu().numpy()
        semantic: list[NDArray | None] = [None] * len(indices)
        if localization.semantic is not None:
            best = classes[:, 0]
            own = localization.semantic[torch.arange(len(best), device=best.device), best]
            semantic = list(own.cpu().numpy())
        for row, index in enumerate(indices):
            maps[index] = ImageMaps(attention[row], semantic[row], activations[row, 1])


def _gathered_maps(done: SplitResult, maps: dict[int, ImageMaps], every: bool) -> dict[int, ImageMaps]:
    """Gather the maps of all processes, of every image or of those that a report shows."""
    shown = {done.images[position].index for position in choose_examples(done.images)}
    mine = {index: image_maps for index, image_maps in maps.items() if every or index in shown}
    return {index: found for part in distributed.gather(mine) for index, found in part.items()}


def _about(predictor: Predictor, source: DataSource, settings: EvaluationSettings) -> dict[str, Any]:
    """Describe the tools, the model and the data of an evaluation."""
    config = predictor.model.config
    return {
        "checkpoint": predictor.name,
        "backbone": config.backbone,
        "method": config.method,
        "image_size": list(config.image_size),
        "data": str(source.root),
        "split": settings.split,
        "val_boxes": None if source.val_boxes is None else _pseudo_boxes(source, settings),
        "strategy": str(predictor.strategy),
        "map": predictor.map_name,
        "foreign_classes": predictor.foreign_classes,
        "mirror": predictor.mirror,
        "amp": None if predictor.amp is None else str(predictor.amp).removeprefix("torch."),
        "versions": {
            "scm_fast": scm_fast.__version__,
            "torch": torch.__version__,
            "opencv": cv2.__version__,
        },
    }


def _pseudo_boxes(source: DataSource, settings: EvaluationSettings) -> dict[str, Any]:
    """Describe the boxes that stand in for those of the validation split, and for how many of its images."""
    name = settings.split if settings.validation else settings.val_split
    dataset = source.validation(name)
    counts = dataset.records.box_counts
    return {
        "file": dataset.pseudo_boxes,
        "split": name,
        "boxes": int(counts.sum()),
        "images": len(dataset),
        "images_with_boxes": int((counts > 0).sum()),
    }
