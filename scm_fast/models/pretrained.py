"""Putting pretrained weights into a model."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from torch import Tensor

from .conformer import Conformer
from .localization_model import LocalizationModel
from .weights import WEIGHTS_FILE, load_strictly, read_state_dict

logger = logging.getLogger("scm_fast")


def load_pretrained(model: LocalizationModel, path: str | os.PathLike[str]) -> None:
    """Put a file with the backbone's own names (timm's, or the Conformer authors'), or a folder that `save_model`
    wrote, into `model`.

    Its classifier is used where `model` has one of the same shape, and dropped with a notice otherwise. A
    calibration starts anew.
    """
    path = Path(path)
    state = read_state_dict(path / WEIGHTS_FILE if path.is_dir() else path)
    backbone, head = model.backbone, model.head
    if isinstance(backbone, Conformer):
        classifier, other = "trans_cls_head", []
        state = _backbone_names(state, classifier)
        theirs, ours = state.get("conv_cls_head.weight"), backbone.conv_cls_head.weight
        if theirs is not None and theirs.shape != ours.shape:
            _notice_dropped(path, "conv_cls_head", theirs, ours)
            state |= {
                f"conv_cls_head.{key}": value for key, value in backbone.conv_cls_head.state_dict().items()
            }
    else:
        classifier, other = "head", ["head_dist"]
        state = _backbone_names(state, classifier)
        # timm's own rules: other position embedding grids, older names.
        state = sys.modules[type(backbone).__module__].checkpoint_filter_fn(state, backbone)
    taken = {name: state.pop(f"{classifier}.{name}", None) for name in ("weight", "bias")}
    for prefix in other:
        state = {key: value for key, value in state.items() if not key.startswith(f"{prefix}.")}
    load_strictly(backbone, state, str(path))
    if taken["weight"] is None:
        return
    if taken["weight"].shape == head.weight.shape and taken["bias"] is not None:
        head.load_state_dict(taken)
    else:
        _notice_dropped(path, classifier, taken["weight"], head.weight)


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


def _notice_dropped(path: str | os.PathLike[str], name: str, theirs: Tensor, ours: Tensor) -> None:
    logger.warning(
        "%s: its classifier %s %s is dropped, the model's is %s and starts anew",
        os.fspath(path),
        name,
        tuple(theirs.shape),
        tuple(ours.shape),
    )
