"""The configuration that rebuilds a model: its arguments, as JSON beside its weights."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import BeforeValidator, Field

from ..errors import InputError
from ..threshold import Threshold, threshold_from_json

LARGEST_SIDE = 8192  # pixels; far above it, a mistyped size would fill the memory with position embeddings

Side = Annotated[int, Field(gt=0, le=LARGEST_SIDE)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@pydantic.dataclasses.dataclass(config=pydantic.ConfigDict(extra="forbid"))
class ModelConfig:
    """Everything that `create_model` was asked for, with what the backbone told about its images.

    image_size: (height, width) of the images that the network takes.
    mean, std: of the channels, in [0, 1], as the backbone was trained.
    attention_layers: the layers that F0 averages; None for all.
    backbone_options: further keywords of timm's model.
    method_options: of the method, where they differ from its defaults.
    calibration: keywords of SpatialCalibration that differ from the preset.
    class_names: one for each class, or None.
    threshold: of the box around a map, chosen on validation images; None if nobody chose one.
    empty_classes: names of classes whose images show no object, and have no box.
    confidences: percentiles 0 ... 100 of `emptiness.confidence` on validation images; None if nobody measured them.
    """

    backbone: str
    num_classes: Annotated[int, Field(gt=0)]
    method: str = "scm"
    preset: str = "paper"
    image_size: tuple[Side, Side] = (224, 224)
    mean: tuple[Finite, Finite, Finite] = (0.485, 0.456, 0.406)
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    attention_layers: list[int] | None = None
    backbone_options: dict[str, Any] = field(default_factory=dict)
    method_options: dict[str, Any] = field(default_factory=dict)
    calibration: dict[str, Any] = field(default_factory=dict)
    class_names: list[str] | None = None
    threshold: Annotated[Threshold | None, BeforeValidator(threshold_from_json)] = None
    empty_classes: list[str] = field(default_factory=list)
    confidences: Annotated[list[Finite], Field(min_length=101, max_length=101)] | None = None

    def __post_init__(self) -> None:
        if unknown := set(self.empty_classes) - set(self.class_names or ()):
            raise InputError(
                f"empty_classes: {', '.join(sorted(unknown))} is not among the classes "
                f"{', '.join(self.class_names or ('(without names)',))}"
            )
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise InputError(
                f"class_names must have {self.num_classes} entries, one per class, got {len(self.class_names)}"
            )

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> ModelConfig:
        try:
            values = json.loads(path.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"{path}: not a JSON file ({error})") from error
        known = [f.name for f in dataclasses.fields(cls)]
        if not isinstance(values, dict) or not {"backbone", "num_classes"} <= values.keys():
            raise InputError(f"{path}: not a model's config: it must have `backbone` and `num_classes`")
        if unknown := values.keys() - set(known):
            raise InputError(
                f"{path}: unknown entries {', '.join(sorted(unknown))}; known: {', '.join(known)}"
            )
        try:
            return make_config(values)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


def sides(image_size: int | Sequence[int]) -> tuple[int, ...]:
    """(height, width) of a size that may be one number for both."""
    return (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)


def make_config(values: dict[str, Any]) -> ModelConfig:
    """A checked configuration, or an InputError in a sentence."""
    try:
        return ModelConfig(**values)
    except pydantic.ValidationError as error:
        raise InputError(_sentence(error)) from None


def _sentence(error: pydantic.ValidationError) -> str:
    """The first thing that is wrong."""
    first = error.errors()[0]
    if first["type"] == "value_error":  # of __post_init__, or of the threshold
        return str(first["ctx"]["error"])
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg'][0].lower()}{first['msg'][1:]}, got {str(first['input'])[:60]!r}"
