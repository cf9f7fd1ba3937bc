"""How much of an image an object takes, measured without a box on the attention of a pretrained network.

SAT must be told that share, and nobody with a folder of photos knows it. Attention that was never trained on
these images already covers most of an object. So the mean share of the pixels above its threshold, which the
images choose, is close to the area that a mask should have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from .. import distributed
from ..data import LocalizationDataset
from ..errors import InputError
from ..localizer import Localizer, Prediction
from ..models import LocalizationModel, create_model
from ..models.methods import make_method
from ..threshold import to_uint8
from .config import TrainConfig

logger = logging.getLogger("scm_fast")
IMAGES = 200  # that are measured: the mean share of twice as many differs by less than 0.01


def measure_object_share(model: LocalizationModel, dataset: LocalizationDataset) -> float:
    """Return the mean share, in (0, 1), of up to `IMAGES` images of a data set that the model's map calls object.

    model: a pretrained network with method `cls`, whose map is its attention.
    """
    localizer = Localizer(model, next(model.parameters()).device)
    localizer.choose_threshold(_images(dataset))
    threshold = localizer.threshold
    shares = [
        float((to_uint8(found.map) > threshold.level(found.map.astype(np.float64))).mean())
        for found in localizer.stream(_images(dataset))
        if isinstance(found, Prediction) and found.map.any()
    ]
    if not shares:
        raise InputError(f"{dataset.root}: no training image could be measured for `area: measured`")
    # A mask of nothing or of everything is none, whatever the attention says.
    return min(max(sum(shares) / len(shares), 0.05), 0.95)


def _images(dataset: LocalizationDataset) -> Iterator[str | Image.Image]:
    """Yield evenly spaced images, so that all classes of a sorted data set take part."""
    for index in np.unique(np.linspace(0, len(dataset) - 1, IMAGES).astype(int)):
        path = dataset.records[int(index)].path
        yield dataset.load(int(index)) if path is None else path


def measured_options(
    config: TrainConfig,
    dataset: LocalizationDataset,
    device: torch.device,
    start_from: Path | None = None,
) -> dict[str, Any]:
    """Return the method's options with what the training images decide. All processes call it together."""
    method = make_method(config.method, config.method_options)

    def object_share() -> float:
        shares: list[float] = []
        distributed.on_first(lambda: shares.append(_share_of_start(config, dataset, device, start_from)))
        return distributed.gather(shares)[0][0]

    return {**config.method_options, **method.measured_options(object_share)}


def _share_of_start(
    config: TrainConfig, dataset: LocalizationDataset, device: torch.device, start_from: Path | None
) -> float:
    """Measure on the network that training starts from."""
    pretrained = config.pretrained if start_from is None else start_from
    if pretrained is False:
        raise InputError(
            "area: measured needs a pretrained network, whose attention knows objects; without one give a number"
        )
    print("measuring how much of an image an object takes", flush=True)
    model = create_model(
        config.backbone,
        dataset.num_classes,
        "cls",
        pretrained,
        attention_layers=config.attention_layers,
        backbone_options=config.backbone_options,
    )
    share = measure_object_share(model.to(device), dataset)
    print(
        f"objects take about {share:.0%} of an image, by the attention of the pretrained network", flush=True
    )
    return share
