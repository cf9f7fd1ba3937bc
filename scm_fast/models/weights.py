"""Reading weight files, never the code in them."""

from __future__ import annotations

import json
import logging
import os
import pickletools
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from ..errors import InputError

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
        look = _fault_of_safetensors if path.suffix == ".safetensors" else _fault_of_torch_file
        raise InputError(f"{path}: {look(path, str(error))}") from error
    if not isinstance(contents, Mapping):
        raise InputError(f"{path}: expected a dictionary of weights, found {type(contents).__name__}")
    return dict(contents)


NOT_WEIGHTS = "this is not a weight file"
TRUNCATED = "this weight file is truncated: copy or download it again"


def _fault_of_safetensors(path: Path, message: str) -> str:
    """The file is the length of its header, the header (JSON with the place of each tensor), and the tensors."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(min(length, 10**8))
    if not header.startswith(b"{"):
        return f"{NOT_WEIGHTS}: expected safetensors"
    present = path.stat().st_size - 8 - length
    if present >= 0:
        try:
            entries = json.loads(header)
            end = max(entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__")
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            return f"{NOT_WEIGHTS}: expected safetensors"
        if present >= end:
            return f"cannot be read as weights ({message})"
    return TRUNCATED


def _fault_of_torch_file(path: Path, message: str) -> str:
    """torch's own text goes on for a page, with advice to run the code in the file."""
    with path.open("rb") as file:
        start = file.read(4)
    code = re.search(r"([\w.]+) was not an allowed global", message)
    if code or (start.startswith(b"\x80") and _pickle_imports(path)):
        name = f" ({code[1]})" if code else ""
        return f"this file contains code{name}, which is refused: only tensors and numbers are read"
    if start == b"PK\3\4":  # torch writes zip archives, whose table of contents comes last
        if not zipfile.is_zipfile(path):
            return TRUNCATED
    elif start.startswith(b"\x80") and re.search(r"EOF|Ran out of input|wrong byte size|truncated", message):
        return TRUNCATED
    return f"{NOT_WEIGHTS}: expected what torch.save writes, or safetensors"


def _pickle_imports(path: Path) -> bool:
    """Tell whether a pickle names anything to be imported, without importing it."""
    try:
        with path.open("rb") as file:
            return any("GLOBAL" in opcode.name for opcode, _, _ in pickletools.genops(file))
    except ValueError:  # not a pickle to its end
        return False


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


def notice_dropped(
    source: str, name: str, theirs: tuple[int, ...] | None, ours: tuple[int, ...] | None
) -> None:
    """Say that a part of a weight file, such as a classifier of other classes, is not used; by shapes."""
    instead = f"the model's is {ours} and starts anew" if ours is not None else "the model has none"
    logger.warning("%s: its %s %s is dropped, %s", source, name, theirs, instead)
