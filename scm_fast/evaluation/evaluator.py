"""`Evaluator`: collects what the metrics need, batch by batch, on all cores."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError
from ..threshold import CUTS, INTERPOLATIONS, no_separation
from .boxes import EVALUATION_SIZE, scale_to_evaluation, thresholds
from .extraction import BoxExtractor, ExtractionPool, ImageBoxes
from .metrics import DELTAS, TOP, SplitMetrics
from .table import Cuts, EvaluationTable


class Evaluator:
    """Accumulates predictions and computes every metric from one pass over a split.

        with Evaluator() as evaluator:
            for ...:
                evaluator.accumulate(...)
            metrics = evaluator.compute()

    Args:
        step: distance of the global thresholds that are tried, 0, step, 2 step, ... below 1.
        size: (width, height) at which boxes are compared.
        interpolation: how maps are resized to `size`: `cubic` (the reference evaluator) or `linear`.
        num_classes: of the model, if known: with five or fewer, Top-5 says nothing and is left out.
        workers: processes that extract boxes while the caller computes the next batch. They end with `compute`,
            or when the `with` is left. By default those of `kept_workers`, or one per core, 16 at most.

    worker_seconds: the CPU time of these processes so far.
    """

    def __init__(
        self,
        step: float = 0.001,
        size: tuple[int, int] = EVALUATION_SIZE,
        interpolation: str = "cubic",
        num_classes: int | None = None,
        workers: int | None = None,
    ) -> None:
        if interpolation not in INTERPOLATIONS:
            raise InputError(
                f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got {interpolation!r}"
            )
        self.cuts = Cuts(thresholds(step), size, interpolation)
        self._num_classes = num_classes
        self._dtype = np.uint8 if max(size) <= 256 else np.uint16
        self._parts: list[EvaluationTable] = []
        self._pending: tuple[dict, list[Future[ImageBoxes]]] | None = None
        self.worker_seconds = 0.0
        self._pool = ExtractionPool(BoxExtractor(self.cuts, self._dtype), workers)

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.close()

    def accumulate(
        self,
        index: ArrayLike,
        label: ArrayLike,
        top_class: ArrayLike,
        top_score: ArrayLike,
        maps: NDArray,
        boxes: Sequence[ArrayLike],
        image_size: ArrayLike,
        masks: Sequence[NDArray[np.uint8] | None] | None = None,
        separation: NDArray | None = None,
        confidence: ArrayLike | None = None,
    ) -> None:
        """Add a batch. The maps are not kept: they are reduced to boxes before the next batch returns.

        Args:
            index: (B,) places of the images in the data set. An image that comes again is counted once.
            label: (B,) ground-truth classes.
            top_class: (B, k) predicted classes, best first; five are used.
            top_score: (B, k) their probabilities.
            maps: (B, 2, h, w) activation maps of the ground-truth class and of the best class.
            boxes: per image its ground-truth boxes (n, 4) in pixels of the original; n may be 0.
            image_size: (B, 2) width and height of the originals.
            masks: per image None or `read_masks(...)` at the evaluation size.
            separation: (B, K), `token_separation(...)` of the best class's maps, by which a threshold is chosen
                where there are no boxes.
            confidence: (B,), `emptiness.confidence(...)` of the logits.
        """
        index = np.asarray(index, dtype=np.int64)
        maps = np.asarray(maps)
        count = len(index)
        if maps.ndim != 4 or maps.shape[:2] != (count, 2):
            raise InputError(f"maps must have shape ({count}, 2, h, w), got {maps.shape}")
        sizes = np.asarray(image_size, dtype=np.int32).reshape(count, 2)
        truth = [
            scale_to_evaluation(b, (w, h), self.cuts.size)
            for b, (w, h) in zip(boxes, sizes.tolist(), strict=True)
        ]
        label = np.asarray(label, dtype=np.int32)
        top_class = _five_columns(np.asarray(top_class, dtype=np.int32), -1)
        # Also the maps of different classes may be one: attention is the same for all.
        same = (label == top_class[:, 0]) | (maps[:, 0] == maps[:, 1]).all((1, 2))
        futures = [
            self._pool.submit(maps[i], bool(same[i]), truth[i], masks[i] if masks else None)
            for i in range(count)
        ]
        self._collect()
        self._pending = (
            {
                "index": index,
                "label": label,
                "top_class": top_class,
                "top_score": _five_columns(np.asarray(top_score, dtype=np.float32), 0),
                "confidence": np.asarray(np.zeros(count) if confidence is None else confidence, np.float32),
                "image_size": sizes,
                "separation": np.asarray(
                    no_separation(count) if separation is None else separation,
                    dtype=np.float32,
                ),
                "truth_count": np.array([len(t) for t in truth], dtype=np.int32),
                "truth": np.concatenate([*truth, np.zeros((0, 4))]).astype(np.int32),
            },
            futures,
        )

    def compute(self) -> SplitMetrics:
        """Every metric over the images of all processes. Collective: call it once, on each of them."""
        try:
            self._collect()
        finally:
            self._pool.close()
        self._parts = [EvaluationTable.concatenate(self._parts or [self._empty()])]  # frees the batches
        return SplitMetrics(self._parts[0].gathered(), self.cuts, self._num_classes)

    def _collect(self) -> None:
        """Wait for the boxes of the pending batch and file them."""
        if self._pending is None:
            return
        columns, futures = self._pending
        self._pending = None
        images = [future.result() for future in futures]
        if not images:
            return
        self.worker_seconds += sum(image.cpu_seconds for image in images)
        counts = [image.pixel_count for image in images if image.pixel_count is not None]
        self._parts.append(
            EvaluationTable(
                **columns,
                true_class_box=np.stack([image.true_class for image in images]),
                top_class_box=np.stack([image.top_class for image in images]),
                true_class_statistics=np.stack([image.statistics[0] for image in images]),
                top_class_statistics=np.stack([image.statistics[1] for image in images]),
                every_box_hit=np.stack([image.every_hit for image in images]),
                has_mask=np.array([image.pixel_count is not None for image in images]),
                pixel_count=np.stack(counts) if counts else self._no_pixels(),
            )
        )

    def _no_pixels(self) -> NDArray[np.uint32]:
        return np.zeros((0, 2, len(self.cuts.thresholds) + 2), dtype=np.uint32)

    def _empty(self) -> EvaluationTable:
        """No image at all: what a process with nothing to do contributes."""
        return EvaluationTable(
            index=np.zeros(0, np.int64),
            label=np.zeros(0, np.int32),
            top_class=np.zeros((0, TOP), np.int32),
            top_score=np.zeros((0, TOP), np.float32),
            confidence=np.zeros(0, np.float32),
            image_size=np.zeros((0, 2), np.int32),
            true_class_box=np.zeros((0, CUTS, 4), self._dtype),
            top_class_box=np.zeros((0, CUTS, 4), self._dtype),
            true_class_statistics=np.zeros((0, 3)),
            top_class_statistics=np.zeros((0, 3)),
            separation=no_separation(0),
            every_box_hit=np.zeros((0, len(DELTAS), (CUTS + 7) // 8), np.uint8),
            truth_count=np.zeros(0, np.int32),
            truth=np.zeros((0, 4), np.int32),
            has_mask=np.zeros(0, bool),
            pixel_count=self._no_pixels(),
        )


def _five_columns(values: NDArray, fill: int) -> NDArray:
    """(B, k) cut or filled to five columns."""
    missing = max(0, TOP - values.shape[1])
    return np.pad(values[:, :TOP], ((0, 0), (0, missing)), constant_values=fill)
