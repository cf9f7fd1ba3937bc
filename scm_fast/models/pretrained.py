"""Putting pretrained weights into a model."""

from __future__ import annotations

import math
import os
from pathlib import Path

from torch import Tensor, nn

from .architectures import architecture_of
from .localization_model import LocalizationModel
from .weights import WEIGHTS_FILE, load_strictly, notice_dropped, read_state_dict

BACKBONE, HEAD, CALIBRATION = "backbone", "head", "calibration"  # parts of a model; a method may add others


def load_pretrained(model: LocalizationModel, path: str | os.PathLike[str]) -> bool:
    """Put a file with the backbone's own names (timm's, or the Conformer authors'), or a folder that `save_model`
    wrote, into `model`.

    The classifier, and what else the file's method added, is used where `model` has the same, and dropped with a
    notice otherwise. A calibration starts anew. Gives whether the classifier was used.
    """
    path = Path(path)
    state = read_state_dict(path / WEIGHTS_FILE if path.is_dir() else path)
    backbone = model.backbone
    architecture = architecture_of(backbone)
    parts = _parts(state) if any(name.startswith(f"{BACKBONE}.") for name in state) else {BACKBONE: state}
    network = architecture.adapt_weights(backbone, parts.pop(BACKBONE), str(path))
    classifier = _below(network, architecture.classifier)  # of the backbone's own file
    for prefix in (architecture.classifier, *architecture.dropped):
        network = {name: value for name, value in network.items() if not name.startswith(f"{prefix}.")}
    load_strictly(backbone, network, str(path))
    parts = {HEAD: classifier} | parts
    parts.pop(CALIBRATION, None)
    used = [name for name, theirs in parts.items() if _take(model, name, theirs, str(path))]
    return HEAD in used


def _parts(state: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The weights of a whole `LocalizationModel` by its parts, each with the names of its own."""
    return {part: _below(state, part) for part in dict.fromkeys(name.split(".")[0] for name in state)}


def _below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in state.items()
        if name.startswith(f"{prefix}.")
    }


def _take(model: LocalizationModel, part: str, theirs: dict[str, Tensor], source: str) -> bool:
    """Load the weights if they fit that part of the model; tell whether they did."""
    if not theirs:
        return False
    module = getattr(model, part, None) or nn.Module()
    ours = module.state_dict()
    if _shapes(theirs) == _shapes(ours):
        module.load_state_dict(theirs)
        return True
    name = f"classifier {architecture_of(model.backbone).classifier}" if part == HEAD else part
    notice_dropped(source, name, _largest(theirs), _largest(ours))
    return False


def _shapes(state: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items()}


def _largest(state: dict[str, Tensor]) -> tuple[int, ...] | None:
    """The shape that tells the most of a part."""
    return max(_shapes(state).values(), key=lambda shape: (len(shape), math.prod(shape)), default=None)
