"""A trained model as one file that runs without this package: `torch.export` (.pt2) or ONNX."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import InputError
from .localization_model import LocalizationModel

SUFFIXES = (".pt2", ".onnx")


def export_model(model: LocalizationModel, path: str | os.PathLike[str]) -> float:
    """Write the network with a dynamic batch size, run the file, and return its largest difference.

    Input `images` (B, 3, height, width), normalised; outputs by name: `logits`, `attention` and, but for
    method="cls", `semantic`. The difference is between the file's outputs and the model's, on random images.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: the suffix chooses the format and must be one of {', '.join(SUFFIXES)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    network = _NamedOutputs(model.for_inference().cpu())
    shape = (3, *model.config.image_size)
    batch = {0: torch.export.Dim("batch", min=1)}
    program = torch.export.export(network, (torch.randn(2, *shape),), dynamic_shapes=(batch,))
    images = torch.randn(3, *shape)
    expected = network(images)
    outputs = (_write_onnx if path.suffix == ".onnx" else _write_pt2)(program, path, images, list(expected))
    return max((outputs[name] - expected[name]).abs().max().item() for name in expected)


class _NamedOutputs(nn.Module):
    """The outputs as a dictionary, which a file can hold without knowing `Localization`."""

    def __init__(self, model: LocalizationModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {name: value for name, value in self.model(images)._asdict().items() if value is not None}


def _write_pt2(
    program: torch.export.ExportedProgram, path: Path, images: Tensor, names: list[str]
) -> dict[str, Tensor]:
    torch.export.save(program, path)
    return torch.export.load(path).module()(images)


def _write_onnx(
    program: torch.export.ExportedProgram, path: Path, images: Tensor, names: list[str]
) -> dict[str, Tensor]:
    missing = [
        name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise InputError(f"{path}: ONNX needs {', '.join(missing)}: pip install 'scm-fast[onnx]'")
    import onnxruntime

    torch.onnx.export(
        program, (), path, input_names=["images"], output_names=names, external_data=False, verbose=False
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    arrays = session.run(names, {"images": images.numpy()})
    return {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}
