"""Saving and loading models: `model.safetensors` with `config.json` in one folder, and published files."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

import safetensors.torch
from torch import Tensor

from ..errors import InputError
from ..files import replacing
from ..threshold import Threshold
from .architectures import architecture_of
from .config import ModelConfig, make_config, sides
from .factory import create_model, model_from_config
from .localization_model import LocalizationModel
from .methods import published_method
from .methods.registry import published_titles
from .weights import WEIGHTS_FILE, load_strictly, read_file, read_state_dict

CONFIG_FILE = "config.json"


def save_model(model: LocalizationModel, folder: str | os.PathLike[str]) -> Path:
    """Write `config.json` and `model.safetensors` into `folder`; `load_model(folder)` rebuilds the model."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    with replacing(folder / WEIGHTS_FILE) as partial:
        # Not save_file: its files are readable by their owner alone.
        partial.write_bytes(safetensors.torch.save(weights))
    with replacing(folder / CONFIG_FILE) as partial:
        model.config.write(partial)
    return folder


def load_model(
    path: str | os.PathLike[str], image_size: int | Sequence[int] | None = None
) -> LocalizationModel:
    """The model of a checkpoint, in evaluation mode, on the CPU.

    path: a folder that `save_model` wrote, the weight file in it, or a published .pth file of
        SCM, TS-CAM, SAT or LCTR.
    image_size: pixels, one number or (height, width), for images of another size than the checkpoint's own.
        Position embeddings are resampled. Threshold and confidences stay behind: they are of images of that size.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such checkpoint")
    weights = path / WEIGHTS_FILE if path.is_dir() else path
    if weights.suffix != ".safetensors":
        return _load_published(weights, image_size)
    config_file = weights.parent / CONFIG_FILE
    if not (weights.is_file() and config_file.is_file()):
        inside = sorted(str(found.parent) for found in path.glob(f"*/{WEIGHTS_FILE}"))
        hint = f"; in this folder there are {', '.join(inside)}" if inside else ""
        raise InputError(f"{path}: a checkpoint is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}{hint}")
    config, state = ModelConfig.read(config_file), read_file(weights)
    _check_sizes(config, state, config_file)
    if image_size is not None:
        config = make_config(
            dataclasses.asdict(config)
            | {"image_size": sides(image_size), "threshold": None, "confidences": None}
        )
    try:
        model = model_from_config(config)
    except InputError as error:
        raise InputError(f"{config_file}: {error}") from error
    if not any(name.startswith("calibration.") for name in state):
        model.calibration = None  # saved from `for_inference()`, or a method without one
    if image_size is not None:
        state = _on_grid_of(model, state, weights)
    load_strictly(model, state, str(weights))
    return model.eval()


def _on_grid_of(model: LocalizationModel, state: dict[str, Tensor], source: Path) -> dict[str, Tensor]:
    """The weights with position embeddings for the model's grid."""
    prefix = "backbone."
    network = {name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)}
    network = architecture_of(model.backbone).adapt_weights(model.backbone, network, str(source))
    others = {name: value for name, value in state.items() if not name.startswith(prefix)}
    return others | {prefix + name: value for name, value in network.items()}


def save_threshold(path: str | os.PathLike[str], threshold: Threshold) -> None:
    """Write a threshold into the config of the checkpoint in a folder, which `Localizer` and `predict` follow."""
    file = check_threshold_can_be_saved(path)
    config = ModelConfig.read(file)
    config.threshold = threshold
    try:
        with replacing(file) as partial:
            config.write(partial)
    except OSError as error:
        raise InputError(f"{file}: the threshold could not be written ({error.strerror})") from error


def check_threshold_can_be_saved(path: str | os.PathLike[str]) -> Path:
    """The file that a checkpoint's threshold is in; an InputError for one without."""
    path = Path(path)
    file = (path if path.is_dir() else path.parent) / CONFIG_FILE
    if not (file.is_file() and (path.is_dir() or path.suffix == ".safetensors")):
        raise InputError(f"{path}: a threshold can only be saved beside a model that has a {CONFIG_FILE}")
    return file


def _check_sizes(config: ModelConfig, state: dict[str, Tensor], source: Path) -> None:
    """Raise an InputError if the config is of a network of another size, before one is made that may be huge."""
    blocks = {int(found[1]) for name in state if (found := re.match(r"backbone\.blocks\.(\d+)\.", name))}
    head = state.get("head.weight")
    present = {
        "num_classes": None if "head.bias" not in state else state["head.bias"].shape[0],
        "backbone_options.embed_dim": None if head is None else head.shape[1],
        "backbone_options.depth": len(blocks) or None,
    }
    asked = {
        "num_classes": config.num_classes,
        "backbone_options.embed_dim": config.backbone_options.get("embed_dim"),
        "backbone_options.depth": config.backbone_options.get("depth"),
    }
    for name, value in asked.items():
        if None not in (value, present[name]) and value != present[name]:
            raise InputError(f"{source}: {name} is {value}, but the weights beside it are of {present[name]}")


def _load_published(path: Path, image_size: int | Sequence[int] | None) -> LocalizationModel:
    """A DeiT of the training code of a method's authors, recognised by its names and shapes."""
    state = read_state_dict(path)
    try:
        found = published_method(state) if "pos_embed" in state else None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if found is None:
        raise InputError(
            f"{path}: not a published {published_titles()} checkpoint: it must have pos_embed and a head.weight of "
            "shape (classes, channels, 3, 3). Backbone weights go to create_model(pretrained=...)"
        )
    method, published = found
    model = create_model(
        _deit_name(state, path),
        num_classes=published.state["head.bias"].shape[0],
        method=method.name,
        preset="official",
        image_size=_image_size(state) if image_size is None else image_size,
        **published.options,
    )
    weights = published.state if image_size is None else _on_grid_of(model, published.state, path)
    load_strictly(model, weights, str(path))
    return model.eval()


def _deit_name(state: dict[str, Tensor], path: Path) -> str:
    width = state["pos_embed"].shape[-1]
    patch = state["patch_embed.proj.weight"].shape[-1]
    sizes = {192: "tiny", 384: "small", 768: "base"}
    if width not in sizes or patch != 16:
        raise InputError(
            f"{path}: expected DeiT-Tiny, -Small or -Base with patches of 16 pixels, "
            f"found width {width} and patches of {patch}"
        )
    distilled = "distilled_" if "dist_token" in state else ""
    return f"deit_{sizes[width]}_{distilled}patch16_224"


def _image_size(state: dict[str, Tensor]) -> int:
    """The side in pixels, from the number of position embeddings; published models are square."""
    prefix = 2 if "dist_token" in state else 1
    return 16 * round((state["pos_embed"].shape[1] - prefix) ** 0.5)
