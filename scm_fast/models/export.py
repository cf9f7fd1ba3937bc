"""A trained model as one file that runs without this package: `torch.export` (.pt2) or ONNX."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from .localization_model import LocalizationModel

SUFFIXES = (".pt2", ".onnx")


def export_model(model: LocalizationModel, path: str | os.PathLike[str]) -> float:
    """Write the network with a dynamic batch size, run the file, and return its largest difference.

    Input `images` (B, 3, height, width), normalised; outputs `logits`, `attention` and, but for
    method="cls", `semantic`. The difference is between the file's outputs and the model's, on random images.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: the suffix chooses the format and must be one of {', '.join(SUFFIXES)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    model = model.for_inference().cpu()
    shape = (3, *model.config.image_size)
    write_and_run = _write_onnx if path.suffix == ".onnx" else _write_pt2
    checked = torch.randn(3, *shape)
    outputs = write_and_run(model, path, torch.randn(2, *shape), checked)
    expected = [tensor for tensor in model(checked) if tensor is not None]
    return max((ours - theirs).abs().max().item() for ours, theirs in zip(outputs, expected, strict=True))


def _write_pt2(model: LocalizationModel, path: Path, example: Tensor, checked: Tensor) -> list[Tensor]:
    torch.export.save(_export(model, example), path)
    return [tensor for tensor in torch.export.load(path).module()(checked) if tensor is not None]


def _write_onnx(model: LocalizationModel, path: Path, example: Tensor, checked: Tensor) -> list[Tensor]:
    missing = [
        name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise InputError(f"{path}: ONNX needs {', '.join(missing)}: pip install 'scm-fast[onnx]'")
    import onnxruntime

    names = ["logits", "attention"] + ["semantic"] * (model.config.method != "cls")
    torch.onnx.export(
        _export(model, example),
        (),
        path,
        input_names=["images"],
        output_names=names,
        external_data=False,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [torch.from_numpy(array) for array in session.run(None, {"images": checked.numpy()})]


def _export(model: LocalizationModel, example: Tensor) -> torch.export.ExportedProgram:
    batch = {0: torch.export.Dim("batch", min=1)}
    return torch.export.export(model, (example,), dynamic_shapes=(batch,))
