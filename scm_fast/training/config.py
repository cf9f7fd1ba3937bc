"""`TrainConfig`: everything a training run can be told, from a YAML file and the command line."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import typing
from collections.abc import Iterable
from dataclasses import field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml
from pydantic import Field

from ..errors import InputError
from ..evaluation.protocols import METRIC_NAMES

RECIPES = Path(str(resources.files("scm_fast.configs")))
BUILTIN = "builtin"  # the recipe of the built-in set

Count = Annotated[int, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]

# Optimiser and stochastic depth of the two presets; a field that is given wins. decay_all: the paper decays
# every parameter, its published code neither vectors nor what `model.no_weight_decay()` names.
PRESET_DEFAULTS: dict[str, dict[str, Any]] = {
    "paper": {"betas": (0.9, 0.99), "weight_decay": 5e-4, "decay_all": True, "drop_path_rate": 0.0},
    "official": {"betas": (0.9, 0.999), "weight_decay": 0.05, "decay_all": False, "drop_path_rate": 0.1},
}


def option(default: Any, help: str) -> Any:
    """A field with the sentence that --help shows for it."""
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@pydantic.dataclasses.dataclass(config=pydantic.ConfigDict(extra="forbid", coerce_numbers_to_str=True))
class TrainConfig:
    """The defaults are the paper's recipe for CUB."""

    # Data
    data: str = option("synthetic", "data folder, or the word synthetic for the built-in set")
    layout: Literal["auto", "cub", "wsol", "ilsvrc", "folder", "synthetic"] = option("auto", "of the folder")
    images: str | None = option(None, "where the images of wsolevaluation metadata are")
    boxes: str | None = option(None, "box source: xml folder, csv or COCO json")
    train_split: str = option("train", "split to train on; trainval: with the held-out images")
    val_split: str = option("val", "split that chooses threshold and checkpoint")
    test_split: str = option("test", "split that is evaluated at the end")
    skip_bad_images: bool = option(False, "leave out images that cannot be read instead of stopping")
    workers: Annotated[int, Field(ge=0)] | None = option(None, "decoding processes; null: by the cores")
    cache: str | None = option(None, "folder for decoded images, e.g. in /dev/shm; null: none")
    cache_gigabytes: Annotated[float, Field(gt=0)] = option(8.0, "bound of the cache")

    # Model
    backbone: str = option("deit_small_patch16_224", "a timm name, or conformer_small_patch16")
    pretrained: bool | str = option(True, "true for timm's hub, false, a weight file, or a model of a run")
    pretraining: dict[str, Any] = option(
        {}, "for pretrained: false, fields of a run of method cls that comes first, as {epochs: 3}"
    )
    method: Literal["scm", "tscam", "cls"] = option("scm", "scm, or a baseline: tscam, or cls, a classifier")
    preset: Literal["paper", "official"] = option("paper", "the paper's settings or its published code's")
    backend: Literal["auto", "reference", "torch", "triton"] = option("auto", "kernels of the calibration")
    image_size: Count = option(224, "pixels")
    resize: Count | None = option(None, "pixels before the random crop; null: image_size * 256 / 224")
    attention_layers: list[int] | None = option(None, "layers whose attention is averaged; null: all")
    drop_path_rate: Share | None = option(None, "stochastic depth; null: the preset's")
    backbone_options: dict[str, Any] = option({}, "keywords of timm's model, as {depth: 4}")
    calibration: dict[str, Any] = option({}, "keywords of SpatialCalibration, as {num_blocks: 2}")

    # Optimisation
    epochs: Count = option(30, "passes over the training split")
    global_batch: Count = option(256, "images an optimiser step, on all processes together")
    micro_batch: Count | None = option(64, "most images a process computes at once; null: its whole share")
    lr: Annotated[float, Field(gt=0)] = option(5e-5, "highest learning rate")
    min_lr: NotNegative = option(0.0, "learning rate at the end")
    warmup_epochs: NotNegative = option(0.5, "epochs in which the learning rate rises")
    betas: tuple[Share, Share] | None = option(None, "of AdamW; null: the preset's")
    weight_decay: NotNegative | None = option(None, "null: the preset's")
    decay_all: bool | None = option(None, "decay vectors and embeddings as well; null: the preset's")
    clip_grad: Annotated[float, Field(gt=0)] | None = option(None, "largest norm of the gradient")
    seed: Annotated[int, Field(ge=0)] = option(0, "of weights, order and augmentation")

    # Machine
    device: str = option("auto", "cuda, cpu or auto")
    amp: Literal["auto", "none", "bf16", "fp16"] = option("auto", "autocast; auto: bf16 on GPUs that have it")
    channels_last: bool = option(False, "memory format of the images and convolutions")
    compile: bool = option(False, "torch.compile the model")
    grad_checkpointing: bool = option(False, "recompute activations: slower, less memory")

    # Evaluation
    protocol: Literal["heldout", "fixed", "maxbox", "published"] = option("heldout", "see docs/evaluation.md")
    threshold: Share | None = option(None, "for protocol fixed")
    best_metric: str = option("gt_known", "metric of the validation split by which the best model is kept")
    report: bool = option(True, "write report.html at the end")

    # Run
    out: str | None = option(None, "run folder; null: runs/<data>-<backbone>-<method>")
    resume: Literal["no", "auto"] = option("no", "auto: continue the run in the folder, if there is one")
    tensorboard: bool = option(False, "write the logs for TensorBoard too; needs scm-fast[tensorboard]")
    checkpoint_steps: Count = option(500, "optimiser steps between checkpoints; each epoch ends with one too")

    def __post_init__(self) -> None:
        if (self.threshold is None) == (self.protocol == "fixed"):
            raise InputError("threshold and protocol: `protocol: fixed` and a `threshold` go together")
        if self.best_metric not in METRIC_NAMES:
            raise InputError(_not_among("best_metric", self.best_metric, METRIC_NAMES))
        if self.train_split == "trainval" and self.val_split == "val":
            raise InputError(
                "train_split: trainval has the images of val_split in it; choose another val_split"
            )
        if self.pretraining and self.pretrained is not False:
            raise InputError("pretraining: goes with `pretrained: false`, which starts from no weights")
        if self.min_lr > self.lr:
            raise InputError(f"min_lr: {self.min_lr} is above lr {self.lr}")
        if self.warmup_epochs >= self.epochs:
            raise InputError(f"warmup_epochs: {self.warmup_epochs:g} leaves nothing of {self.epochs} epochs")
        if self.resize is not None and self.resize < self.image_size:
            raise InputError(f"resize: {self.resize} is smaller than the crop, image_size {self.image_size}")
        for name, value in PRESET_DEFAULTS[self.preset].items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        if self.out is None:
            self.out = f"runs/{Path(self.data).name}-{self.backbone}-{self.method}"

    def save(self, path: Path) -> None:
        path.write_text(yaml.safe_dump(self.as_dict(), sort_keys=False))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as a YAML file has them."""
        values = dataclasses.asdict(self)
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


FIELDS = {f.name: f for f in dataclasses.fields(TrainConfig)}
# The parts of the configuration, by their first field.
PARTS = {
    "data": "data",
    "backbone": "model",
    "epochs": "optimisation",
    "device": "machine",
    "protocol": "evaluation",
    "out": "run folder",
}


def make_config(values: dict[str, Any], source: str) -> TrainConfig:
    """A checked configuration; `source` says in errors where the values came from."""
    unknown = [_not_among("unknown field", name, FIELDS) for name in values if name not in FIELDS]
    if unknown:
        raise InputError(f"{source}: " + "; ".join(unknown))
    try:
        return TrainConfig(**values)
    except pydantic.ValidationError as error:
        problems = {e["loc"][:1]: e for e in error.errors()}  # a union reports each of its members
        raise InputError(f"{source}: " + "; ".join(map(_sentence, problems.values()))) from None


def _sentence(error: Any) -> str:
    if not error["loc"]:  # of __post_init__
        return str(error["ctx"]["error"])
    name, given = error["loc"][0], error["input"]
    if error["type"] == "literal_error":
        return _not_among(name, given, [part.strip("' ") for part in _choices(error)])
    return f"{name}: {error['msg'][0].lower()}{error['msg'][1:]}, got {given!r}"


def _choices(error: Any) -> list[str]:
    return error["ctx"]["expected"].replace(" or ", ", ").split(",")


def _not_among(what: str, given: object, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(str(given), known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}"
    return f"{what} {given!r}: {hint}"


def recipe_names() -> list[str]:
    """Recipes that come with the package: the files of `configs/`."""
    return sorted(file.stem for file in RECIPES.glob("*.yaml"))


def read_recipe(name: str) -> dict[str, Any]:
    """The fields of a YAML file, or of a built-in recipe by its name."""
    if name in recipe_names():
        return read_yaml(RECIPES / f"{name}.yaml")
    if not Path(name).exists():
        raise InputError(
            f"--config {name}: no such file, and no recipe of that name ({', '.join(recipe_names())})"
        )
    return read_yaml(Path(name))


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a YAML file ({error})") from error
    if values is not None and not isinstance(values, dict):
        raise InputError(f"{path}: expected lines of `field: value`")
    return values or {}


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--config`, and an option for every field."""
    parser.add_argument(
        "--config", help=f"YAML file, or one of {', '.join(recipe_names())}; the other options override it"
    )
    types = typing.get_type_hints(TrainConfig)
    for name, f in FIELDS.items():
        if name in PARTS:
            part = parser.add_argument_group(PARTS[name])
        choices = typing.get_args(types[name]) if typing.get_origin(types[name]) is Literal else ()
        default = {} if f.default is dataclasses.MISSING else f.default
        shown = yaml.safe_dump(default, default_flow_style=True).splitlines()[0]
        flag = {"nargs": "?", "const": "true"} if isinstance(default, bool) else {}
        part.add_argument(
            f"--{name.replace('_', '-')}",
            default=argparse.SUPPRESS,
            metavar="|".join(choices) or "VALUE",
            help=f"{f.metadata['help']} ({shown})".replace("%", "%%"),
            **flag,  # type: ignore[arg-type]
        )


def config_from_options(options: argparse.Namespace) -> TrainConfig:
    """The configuration of a command line; without --config and --data it is the built-in set's recipe."""
    given = dict(vars(options))
    recipe = given.pop("config")
    if recipe is None and "data" not in given:
        recipe = BUILTIN
    values = read_recipe(recipe) if recipe else {}
    make_config(values, str(recipe))  # so that an error names the file, or else the command line
    return make_config(values | {k: _value(k, v) for k, v in given.items()}, "command line")


def _value(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"command line: --{name.replace('_', '-')} {text!r} is no YAML value") from error
