"""A trained model as one file that runs without this package: `torch.export` (.pt2) or ONNX."""

from __future__ import annotations

import importlib.util
import io
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..files import replacing
from ..threshold import threshold_to_use
from .config import ModelConfig
from .localization_model import LocalizationModel

SUFFIXES = (".pt2", ".onnx")
OUTPUTS = ("logits", "attention", "semantic")  # of `Localization`
MAX_DIFFERENCE = 1e-3
LARGEST_BATCH = 2**30  # PyTorch 2.6 excludes the largest integer, and then refuses a batch without a limit


def export_model(model: LocalizationModel, path: str | os.PathLike[str]) -> float:
    """Export the network with a dynamic batch size, compare, and write it; gives the largest difference.

    Input `images` (B, 3, height, width), normalised; outputs by name: `logits`, `attention` and, where the map
    depends on the class, `semantic`. The difference is that to the model, on random images.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: the suffix chooses the format and must be one of {', '.join(SUFFIXES)}")
    if path.suffix == ".onnx":
        _require_onnx(path)
    network = _NamedOutputs(model.for_inference().cpu())
    shape = (3, *model.config.image_size)
    batch = {0: torch.export.Dim("batch", min=1, max=LARGEST_BATCH)}
    example = (torch.randn(2, *shape),)
    # Neither strict nor the older exporter to ONNX, as newer PyTorch does by itself.
    program = torch.export.export(network, example, dynamic_shapes=(batch,), strict=False)
    images = torch.randn(3, *shape)
    expected = network(images)
    if path.suffix == ".onnx":
        content, outputs = _to_onnx(program, images, list(expected), _metadata(model.config))
    else:
        content, outputs = _to_pt2(program, images)
    difference = max((outputs[name] - expected[name]).abs().max().item() for name in expected)
    if not difference <= MAX_DIFFERENCE:  # NaN too
        raise InputError(
            f"{path}: its outputs would differ from the model's by {difference:.1e}; not written"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise InputError(f"{path}: could not be written ({error.strerror})") from error
    return difference


class _NamedOutputs(nn.Module):
    """The outputs as a dictionary, which a file can hold without knowing `Localization`."""

    def __init__(self, model: LocalizationModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        outputs = self.model(images)._asdict()
        return {name: outputs[name] for name in OUTPUTS if outputs[name] is not None}


# Both in memory first: on a full disk the writers of torch end the process.


def _to_pt2(program: torch.export.ExportedProgram, images: Tensor) -> tuple[bytes, dict[str, Tensor]]:
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    return buffer.getvalue(), torch.export.load(buffer).module()(images)


def _to_onnx(
    program: torch.export.ExportedProgram, images: Tensor, names: list[str], metadata: dict[str, str]
) -> tuple[bytes, dict[str, Tensor]]:
    import onnxruntime

    exported = torch.onnx.export(
        program, (), input_names=["images"], output_names=names, verbose=False, dynamo=True
    )
    assert exported is not None
    proto = exported.model_proto
    _name_batch_axis(proto)
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    content = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    arrays = session.run(names, {"images": images.numpy()})
    return content, {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}


def _name_batch_axis(proto: Any) -> None:
    """`batch` in place of the exporter's own name for it."""
    graph = proto.graph
    theirs = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param == theirs:
                axis.dim_param = "batch"


def _metadata(config: ModelConfig) -> dict[str, str]:
    """Return what a user of the file must know beside its outputs, as JSON."""
    names = config.class_names or [str(index) for index in range(config.num_classes)]
    known = {
        "class_names": list(names),
        "image_size": list(config.image_size),  # height, width
        "mean": list(config.mean),
        "std": list(config.std),
        "threshold": asdict(threshold_to_use(config.threshold).threshold),
    }
    return {key: json.dumps(value) for key, value in known.items()}


def _require_onnx(path: Path) -> None:
    needed = ("onnx", "onnxscript", "onnxruntime")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"{path}: ONNX needs {', '.join(missing)}: pip install 'scm-fast[onnx]'")
