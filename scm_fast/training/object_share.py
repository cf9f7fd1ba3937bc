"""Measure how much of an image an object takes, without a box, before the first step.

SAT must be told that share, and nobody with a folder of photos knows it. A short training by SCM finds out: after
`STEPS` steps the map F0 * S0 already covers whole objects, and it needs no size. Its boxes on training images
give the share, as an object fills its box about as far as an ellipse does. Attention that was never trained on
the images is no guide: its boxes are too large for cars and butterflies, and too small for defects on tiles.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from .. import distributed
from ..data import LocalizationDataset, published_preprocessing
from ..devices import amp_dtype
from ..errors import InputError
from ..localizer import Localizer, Prediction
from ..models import LocalizationModel
from ..models.methods import make_method
from ..progress import tqdm
from .building import build_model
from .config import TrainConfig
from .optimization import build_optimizer

STEPS, BATCH, LR = 100, 16, 1e-4  # of the short training
IMAGES = 100  # that are measured
ELLIPSE = math.pi / 4  # the share of its box that an ellipse takes


def measure_object_share(model: LocalizationModel, dataset: LocalizationDataset) -> float:
    """Return the mean share, in (0, 1), that objects take of up to `IMAGES` images, by the boxes of the model."""
    localizer = Localizer(model, next(model.parameters()).device)
    localizer.choose_threshold(_images(dataset))
    shares = []
    for found in localizer.stream(_images(dataset)):
        if isinstance(found, Prediction) and found.box is not None and found.map.any():
            (x0, y0, x1, y1), (width, height) = found.box, found.size
            shares.append(ELLIPSE * (x1 - x0) * (y1 - y0) / (width * height))
    if not shares:
        raise InputError(f"{dataset.root}: no training image could be measured for `area: measured`")
    # A mask of nothing or of everything is none, whatever the boxes say.
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
        distributed.on_first(lambda: shares.append(_share(config, dataset, device, start_from)))
        return distributed.gather(shares)[0][0]

    return {**config.method_options, **method.measured_options(object_share)}


def _share(
    config: TrainConfig, dataset: LocalizationDataset, device: torch.device, start_from: Path | None
) -> float:
    if config.pretrained is False and start_from is None:
        raise InputError("area: measured needs a pretrained network; without one give a number")
    share = measure_object_share(train_briefly(config, dataset, device, start_from), dataset)
    print(f"objects take about {share:.0%} of an image, by what SCM makes of the images", flush=True)
    return share


def train_briefly(
    config: TrainConfig, dataset: LocalizationDataset, device: torch.device, start_from: Path | None = None
) -> LocalizationModel:
    """Return the network that the configuration starts from, after `STEPS` steps of SCM on this process alone."""
    brief = dataclasses.replace(
        config,
        method="scm",
        method_options={},
        calibration={"iterations": 4, "detach_init": False},
        image_size=config.small_size or config.image_size,
        resize=None,
        small_size=None,
        small_epochs=None,
        frozen_blocks=None,
        lr=LR,
        min_lr=0.0,
        head_lr=None,
        layer_decay=1.0,
    )
    torch.manual_seed(config.seed)
    model = build_model(brief, dataset, start_from).to(device).train()
    optimizer = build_optimizer(model, brief)
    preprocessing = published_preprocessing(
        training=True, image_size=brief.image_size, mean=model.config.mean, std=model.config.std
    )
    amp = (
        torch.bfloat16 if amp_dtype(config.amp, device) is torch.bfloat16 else None
    )  # fp16 would need a scaler
    indices: list[int] = []
    unreadable: set[int] = set()
    for _ in tqdm(range(STEPS), "measuring how large objects are", unit=" steps", disable=None, leave=False):
        pictures: list[torch.Tensor] = []
        labels: list[int] = []
        while len(labels) < min(BATCH, len(dataset)):
            indices = indices or torch.randperm(len(dataset)).tolist()
            index = indices.pop()
            try:
                picture = dataset.load(index)
            except InputError:  # training itself says which ones it leaves out
                unreadable.add(index)
                if not config.skip_bad_images or len(unreadable) == len(dataset):
                    raise
                continue
            assert preprocessing.augment is not None
            pictures.append(preprocessing.augment(preprocessing.prepare(picture)))
            labels.append(dataset.records[index].label)
        images = preprocessing.normalize(torch.stack(pictures).to(device))
        with torch.autocast(device.type, dtype=amp, enabled=amp is not None):
            logits = model(images).logits
        loss = F.cross_entropy(logits.float(), torch.tensor(labels, device=device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model.eval()
