"""Reading weight files, never their code, and putting pretrained weights into a model."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from ..errors import InputError
from .conformer import Conformer
from .localization_model import LocalizationModel

logger = logging.getLogger("scm_fast")

WEIGHTS_FILE = "model.safetensors"  # in the folder of a saved model

# Published checkpoints keep their best metric as a numpy number. These build numbers and nothing else.
_build_number = np.float64(0).__reduce__()[0]  # public name for a function that numpy 2 moved
_NUMPY_NUMBERS: list[Any] = [
    np.dtype,
    np.dtypes.Float64DType,
    np.dtypes.Float32DType,
    (_build_number, "numpy.core.multiarray.scalar"),
    (_build_number, "numpy._core.multiarray.scalar"),
]


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The contents of a .safetensors or PyTorch file, on the CPU; no code in the file is run."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such weight file")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        with torch.serialization.safe_globals(_NUMPY_NUMBERS):
            contents = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a file of another kind fails anywhere in the reader: KeyError, EOFError, ...
        # torch's own text goes on for a page, with advice to run the code in the file.
        reason = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
        raise InputError(f"{path}: cannot be read as weights ({reason})") from error
    if not isinstance(contents, Mapping):
        raise InputError(f"{path}: expected a dictionary of weights, found {type(contents).__name__}")
    return dict(contents)


def read_state_dict(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors by name, out of the usual wrappings: `model` or `state_dict`, and `module.`"""
    state = read_file(path)
    for key in ("state_dict", "model"):
        if isinstance(state.get(key), Mapping):
            state = dict(state[key])
    state = {name.removeprefix("module."): value for name, value in state.items()}
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(
            f"{path}: found no weights: neither tensors by name, nor a `model` or `state_dict` of them"
        )
    return state


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:12]) + (f" and {len(keys) - 12} more" if len(keys) > 12 else "")


def load_strictly(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """`load_state_dict`, with an InputError that lists the keys that do not fit."""
    own = module.state_dict()
    problems = {
        "missing in the file": sorted(own.keys() - state.keys()),
        "not in the model": sorted(state.keys() - own.keys()),
        "of another shape": [
            f"{key} (file {tuple(state[key].shape)}, model {tuple(own[key].shape)})"
            for key in sorted(own.keys() & state.keys())
            if own[key].shape != state[key].shape
        ],
    }
    found = [f"{len(keys)} {what}: {_some(keys)}" for what, keys in problems.items() if keys]
    if found:
        raise InputError(f"{source} does not fit the model. " + "; ".join(found))
    module.load_state_dict(state)


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
