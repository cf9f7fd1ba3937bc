"""`load_classifier`: a timm network with its own classifier, ready to localise without any training."""

from __future__ import annotations

import os
from collections.abc import Sequence

import timm
from timm.data import ImageNetInfo, infer_imagenet_subset

from ..errors import InputError
from .factory import create_model
from .localization_model import LocalizationModel
from .pretrained import load_pretrained


def load_classifier(
    name: str,
    pretrained: str | os.PathLike[str] | None = None,
    image_size: int | Sequence[int] | None = None,
) -> LocalizationModel:
    """The timm network of that name in evaluation mode, with its ImageNet classes.

    pretrained: a .safetensors or .pth file with its weights; None for timm's hub.
    image_size: as in `load_model`.
    """
    cfg = (
        timm.get_pretrained_cfg(name, allow_unregistered=False) if timm.is_model(name.split(".")[0]) else None
    )
    if cfg is not None and not cfg.num_classes:
        raise InputError(
            f"{name!r} has no classifier of its own: train one (scm-fast train --backbone {name}), or take a "
            "model that has, such as deit_tiny_patch16_224"
        )
    classes = cfg.num_classes if cfg is not None else 1000  # create_model says what is wrong with the name
    subset = None if cfg is None else infer_imagenet_subset(cfg.to_dict())
    names = list(ImageNetInfo(subset).label_descriptions()) if subset else None
    model = create_model(
        name, classes, "cls", pretrained=pretrained is None, image_size=image_size, class_names=names
    )
    if pretrained is not None and not load_pretrained(model, pretrained):
        raise InputError(f"{pretrained}: has no classifier of {classes} classes, which {name!r} should have")
    return model.eval()
