"""`create_model`: a localisation model by name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError
from ..spatial_calibration import PRESETS, SpatialCalibration
from . import backbones
from .config import ModelConfig, make_config, sides
from .localization_model import LocalizationModel
from .methods import Method, make_method
from .pretrained import load_pretrained


def create_model(  # noqa: PLR0913, keywords of one call
    backbone: str,
    num_classes: int,
    method: str = "scm",
    pretrained: bool | str | os.PathLike[str] = False,
    *,
    preset: str = "paper",
    image_size: int | Sequence[int] | None = None,
    attention_layers: Sequence[int] | None = None,
    class_names: Sequence[str] | None = None,
    backbone_options: dict[str, Any] | None = None,
    method_options: Mapping[str, Any] | None = None,
    calibration: Mapping[str, Any] | None = None,
    empty_classes: Sequence[str] = (),
) -> LocalizationModel:
    """A transformer that is trained on labels and tells where the object is.

    >>> model = create_model("deit_small_patch16_224", num_classes=200, pretrained=True)
    >>> logits = model.train()(images).logits
    >>> localization = model.eval()(images)
    >>> maps = localization.activation_map(labels)  # (B, 14, 14)

    Args:
        backbone: a timm name with a CLS token, or `conformer_small_patch16`.
        num_classes: how many classes.
        method: how it is trained and which map it cuts: `scm`, `tscam`, `sat`, `lctr`, `cls`; see docs/methods.md.
        pretrained: False, True for timm's hub, a .safetensors or .pth file with the backbone's names, or a folder
            that `save_model` wrote, for another method or other classes.
        preset: `paper` or `official`: head initialisation and calibration.
        image_size: pixels, one number or (height, width); the backbone's own if None.
        attention_layers: layers whose CLS attention is averaged, negative from the end; None for all.
        class_names: kept with the model, for people who read its predictions.
        backbone_options: further keywords of timm's model, e.g. `{"drop_path_rate": 0.1}`.
        method_options: of the method.
        calibration: keywords of SpatialCalibration that override the preset, e.g. `{"iterations": 6}`.
        empty_classes: names of classes whose images show no object and get no box.
    """
    made = make_method(method, method_options or {})
    if preset not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    if not isinstance(num_classes, int) or num_classes < 1:
        raise InputError(f"num_classes must be a positive integer, got {num_classes!r}")
    module = _calibration(made, preset, calibration)

    size = None if image_size is None else sides(image_size)
    from_hub = pretrained is True
    hub_classifier = from_hub and made.keeps_classifier
    network = backbones.build_backbone(
        backbone,
        num_classes,
        size,
        backbone_options,
        from_hub,
        hub_classifier,
    )
    backbones.check_backbone(backbone, network)
    if size is not None:
        backbones.check_whole_patches(network, "image_size is", size[0], size[1])
    backbones.cover_backbone(network, attention_layers, made.row_in_training, made.row_in_evaluation)
    made.prepare(backbone, network)
    mean, std = backbones.channel_statistics(network)
    config = make_config(
        {
            "backbone": backbone,
            "num_classes": num_classes,
            "method": method,
            "preset": preset,
            "image_size": size if size else backbones.default_image_size(network),
            "mean": mean,
            "std": std,
            "attention_layers": attention_layers and list(attention_layers),
            "backbone_options": dict(backbone_options or {}),
            "method_options": dict(method_options or {}),
            "calibration": dict(calibration or {}),
            "class_names": class_names and list(class_names),
            "empty_classes": list(empty_classes),
        }
    )
    parts = made.parts(network.embed_dim, num_classes, preset)
    model = LocalizationModel(config, made, network, parts, module)
    if hub_classifier:
        model.head.load_state_dict(backbones.detach_classifier(network))
    elif not isinstance(pretrained, bool):
        load_pretrained(model, pretrained)
    return model


def _calibration(
    method: Method, preset: str, overrides: Mapping[str, Any] | None
) -> SpatialCalibration | None:
    if overrides is not None and not isinstance(overrides, Mapping):
        raise InputError(
            f"calibration must be a mapping of keywords, as {{iterations: 6}}, got {overrides!r}"
        )
    if method.calibrates(overrides or {}):
        return SpatialCalibration.from_preset(preset, **(overrides or {}))
    if overrides:
        raise InputError(
            f"method {method.name!r} has no calibration, so {', '.join(overrides)} cannot be set"
        )
    return None


def model_from_config(config: ModelConfig) -> LocalizationModel:
    """The model that `config` describes, with fresh weights and the images' statistics of `config`."""
    model = create_model(
        config.backbone,
        config.num_classes,
        config.method,
        preset=config.preset,
        image_size=config.image_size,
        attention_layers=config.attention_layers,
        class_names=config.class_names,
        backbone_options=config.backbone_options,
        method_options=config.method_options,
        calibration=config.calibration,
    )
    model.config = config
    return model
