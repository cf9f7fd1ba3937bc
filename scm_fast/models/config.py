"""What rebuilds a model: the arguments it was made with, as JSON beside its weights."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError

METHODS = ("scm", "tscam", "cls")


@dataclass
class ModelConfig:
    """Everything that `create_model` was asked for, with what the backbone told about its images.

    image_size: (height, width) of the images that the network takes.
    mean, std: of the channels, in [0, 1], as the backbone was trained.
    attention_layers: the layers that F0 averages; None for all.
    backbone_options: further keywords of timm's model.
    calibration: keywords of SpatialCalibration that differ from the preset.
    class_names: one for each class, or None.
    threshold: of the box around a map, chosen on validation images; None if nobody chose one.
    """

    backbone: str
    num_classes: int
    method: str = "scm"
    preset: str = "paper"
    image_size: tuple[int, int] = (224, 224)
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    attention_layers: Sequence[int] | None = None
    backbone_options: dict[str, Any] = field(default_factory=dict)
    calibration: dict[str, Any] = field(default_factory=dict)
    class_names: Sequence[str] | None = None
    threshold: float | None = None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> ModelConfig:
        try:
            values = json.loads(path.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not a JSON file ({error})") from error
        known = {f.name for f in dataclasses.fields(cls)}
        if not isinstance(values, dict) or not {"backbone", "num_classes"} <= values.keys():
            raise InputError(f"{path}: not a model's config: it must have `backbone` and `num_classes`")
        if unknown := values.keys() - known:
            raise InputError(
                f"{path}: unknown entries {', '.join(sorted(unknown))}; known: {', '.join(known)}"
            )
        tuples = {name: tuple(values[name]) for name in ("image_size", "mean", "std") if name in values}
        return cls(**values | tuples)
