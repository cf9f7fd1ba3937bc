"""Putting pretrained weights into a model."""

from __future__ import annotations

import os
from pathlib import Path

from torch import Tensor

from .architectures import architecture_of
from .localization_model import LocalizationModel
from .weights import WEIGHTS_FILE, load_strictly, notice_dropped, read_state_dict


def load_pretrained(model: LocalizationModel, path: str | os.PathLike[str]) -> bool:
    """Put a file with the backbone's own names (timm's, or the Conformer authors'), or a folder that `save_model`
    wrote, into `model`.

    Its classifier is used where `model` has one of the same shape, and dropped with a notice otherwise. A
    calibration starts anew. Gives whether the classifier was used.
    """
    path = Path(path)
    state = read_state_dict(path / WEIGHTS_FILE if path.is_dir() else path)
    backbone, head = model.backbone, model.head
    architecture = architecture_of(backbone)
    classifier = architecture.classifier
    state = architecture.adapt_weights(backbone, _backbone_names(state, classifier), str(path))
    taken = {name: state.pop(f"{classifier}.{name}", None) for name in ("weight", "bias")}
    for prefix in architecture.dropped:
        state = {key: value for key, value in state.items() if not key.startswith(f"{prefix}.")}
    load_strictly(backbone, state, str(path))
    if taken["weight"] is None:
        return False
    own = head.state_dict()
    if _shapes(taken) == _shapes(own):
        head.load_state_dict(taken)
        return True
    notice_dropped(str(path), classifier, taken["weight"], next(iter(own.values())))
    return False


def _shapes(state: dict[str, Tensor | None]) -> dict[str, tuple[int, ...] | None]:
    return {name: None if value is None else tuple(value.shape) for name, value in state.items()}


def _backbone_names(state: dict[str, Tensor], classifier: str) -> dict[str, Tensor]:
    """The names that the backbone's own file would have, if this is a whole `LocalizationModel`."""
    if not any(key.startswith("backbone.") for key in state):
        return state
    own = {
        key.removeprefix("backbone."): value for key, value in state.items() if key.startswith("backbone.")
    }
    head = {
        f"{classifier}.{key.removeprefix('head.')}": value
        for key, value in state.items()
        if key.startswith("head.")
    }
    return own | head
