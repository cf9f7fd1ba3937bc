"""Build what a configuration stands for: model and loader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..data import DecodedCache, LocalizationDataset, TrainLoader, build_train_loader, published_preprocessing
from ..models import LocalizationModel, create_model
from ..models.backbones import any_size_options, check_whole_patches
from ..models.layers import freeze_blocks
from .config import TrainConfig


def build_model(
    config: TrainConfig,
    dataset: LocalizationDataset,
    start_from: Path | None = None,
    method_options: Mapping[str, Any] | None = None,
) -> LocalizationModel:
    """Return the model of a run, with its first weights.

    start_from: weights instead of those that the configuration names.
    method_options: those of the configuration, if None.
    """
    calibration = {"backend": config.backend, **config.calibration} if config.calibrates else {}
    options = dict(config.backbone_options)
    if config.drop_path_rate:
        options["drop_path_rate"] = config.drop_path_rate
    if config.small_size is not None:
        options |= any_size_options(config.backbone)
    model = create_model(
        config.backbone,
        dataset.num_classes,
        config.method,
        config.pretrained if start_from is None else start_from,
        preset=config.preset,
        image_size=config.image_size,
        attention_layers=config.attention_layers,
        class_names=dataset.class_names,
        backbone_options=options,
        method_options=config.method_options if method_options is None else method_options,
        calibration=calibration,
        empty_classes=config.empty_classes,
    )
    if config.small_size is not None:
        check_whole_patches(model.backbone, "small_size is", config.small_size, config.small_size)
    if config.frozen_blocks is not None:
        freeze_blocks(model, config.frozen_blocks)
    return model


def build_loader(
    config: TrainConfig, dataset: LocalizationDataset, model: LocalizationModel, device: torch.device
) -> TrainLoader:
    preprocessing = published_preprocessing(
        training=True,
        image_size=config.image_size,
        resize=config.resize,
        color_jitter=config.color_jitter,
        mean=model.config.mean,
        std=model.config.std,
    )
    assert config.global_batch is not None
    cache = None
    if config.cache is not None:
        cache = DecodedCache(config.cache, dataset, preprocessing.size, config.cache_gigabytes)
    return build_train_loader(
        dataset,
        preprocessing,
        global_batch=config.global_batch,
        micro_batch=config.micro_batch,
        seed=config.seed,
        workers=config.workers,
        device=device,
        cache=cache,
        skip_bad_images=config.skip_bad_images,
    )
