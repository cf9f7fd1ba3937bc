"""Find images that get no box: those of an empty class, and those unlike the images of the training.

A user names the empty classes, such as `free` for tiles without a defect. For everything else there is the
confidence of an image, log(sum(exp(logits))): it is high where some class fits. An image is rejected if its
confidence is below that of a given share of the validation images, which show objects for sure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from ..models.config import ModelConfig

PERCENTILES = np.arange(101)


def confidence(logits: Tensor) -> Tensor:
    """Return how well the best classes fit each image, (B,), from its logits (B, C)."""
    return logits.float().logsumexp(1)


def confidence_percentiles(confidences: NDArray[np.float32]) -> list[float] | None:
    """Return the percentiles 0 ... 100 of the confidences (N,) of validation images; None without an image."""
    if not len(confidences):
        return None
    return [round(float(value), 4) for value in np.percentile(confidences, PERCENTILES)]


class Emptiness:
    """Says of each image why it gets no box.

    reject: the share, in [0, 1), of validation images that would be rejected; 0 rejects none.
    """

    def __init__(self, config: ModelConfig, class_names: Sequence[str], reject: float = 0.0) -> None:
        if not 0 <= reject < 1:
            raise InputError(f"reject must be in [0, 1), got {reject!r}")
        if reject and config.confidences is None:
            raise InputError(
                "reject: this model has no confidences of validation images to compare with; scm-fast train "
                "stores them in its checkpoints"
            )
        self.reject = reject
        self._names = class_names
        self._empty = set(config.empty_classes)
        self._least = (
            float(np.interp(100 * reject, PERCENTILES, config.confidences or [])) if reject else -np.inf
        )

    def reason(self, label: int, confidence: float) -> str:
        """Return why an image of that class and confidence gets no box, or an empty text if it gets one."""
        if self._names[label] in self._empty:
            return f"class {self._names[label]} shows no object"
        if confidence < self._least:
            return f"less like the training images than {1 - self.reject:.0%} of the validation images"
        return ""
