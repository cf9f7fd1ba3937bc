"""`TrainConfig`: everything a training run can be told."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Callable, Iterable
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pydantic
import yaml
from pydantic import Field

from .. import choices
from ..errors import TIMEOUT, InputError

if TYPE_CHECKING:
    from ..data import DataSource

Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]

# Of a global batch that is chosen by the number of images.
STEPS_PER_EPOCH, SMALLEST_BATCH, LARGEST_BATCH = 100, 8, 256
FEWEST_EPOCHS = 4  # that an image budget leaves

# Optimiser and stochastic depth of the two presets; an option that is given wins. decay_all: the paper decays
# every parameter, its published code neither vectors nor what `model.no_weight_decay()` names.
PRESET_DEFAULTS: dict[str, dict[str, Any]] = {
    "paper": {"betas": (0.9, 0.99), "weight_decay": 5e-4, "decay_all": True, "drop_path_rate": 0.0},
    "official": {"betas": (0.9, 0.999), "weight_decay": 0.05, "decay_all": False, "drop_path_rate": 0.1},
}


def option(
    default: Any,
    help: str | Callable[[], str],
    *,
    choices: Callable[[], Iterable[str]] | None = None,
    resume: bool = False,
    compare: bool = True,
) -> Any:
    """An option of a run.

    help: the sentence that --help shows for it.
    choices: what it may be. Like a help that is a function, it is called when it is needed: it may import torch.
    resume: whether a run may be resumed with another value: it says where things are or how they are computed.
    compare: whether runs that differ in it are different experiments, and not repetitions of one.
    """
    metadata = {"help": help, "choices": choices, "resume": resume, "compare": compare}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@pydantic.dataclasses.dataclass(config=pydantic.ConfigDict(extra="forbid"))
class TrainConfig:
    """The defaults are the paper's recipe for CUB, but for the batch (256), which follows the number of images."""

    # Data
    data: str = option("synthetic", "data folder, or the word synthetic for the built-in set", resume=True)
    layout: str = option("auto", "of the folder", choices=choices.layouts, resume=True)
    images: str | None = option(
        None, lambda: f"image folder, if not beside the annotations ({choices.takers('images')})", resume=True
    )
    boxes: str | None = option(
        None, lambda: f"box source: xml folder, csv or COCO json ({choices.takers('boxes')})", resume=True
    )
    train_split: str = option("train", "split to train on; trainval: with the held-out images")
    val_split: str = option("val", "split that chooses threshold and checkpoint")
    val_boxes: str | None = option(
        None, "pseudo-boxes that stand in for those of val_split: a COCO json or wsolevaluation folder"
    )
    test_split: str = option("test", "split that is evaluated at the end", resume=True)
    empty_classes: list[str] = option(
        [], "classes of images that show no object, as [free]: predict gives them no box"
    )
    skip_bad_images: bool = option(False, "leave out images that cannot be read instead of stopping")
    workers: Annotated[int, Field(ge=0)] | None = option(
        None, "decoding processes; null: by the cores", resume=True, compare=False
    )
    cache: str | None = option(
        None, "folder for decoded images, e.g. in /dev/shm; null: none", resume=True, compare=False
    )
    cache_gigabytes: Annotated[float, Field(gt=0)] = option(
        8.0, "bound of the cache", resume=True, compare=False
    )

    # Model
    backbone: str = option("deit_small_patch16_224", "a timm name, or conformer_small_patch16")
    pretrained: bool | str = option(
        True, "true for timm's hub, false, a weight file, or a model of a run", resume=True
    )
    pretraining: dict[str, Any] = option(
        {}, "for pretrained: false, options of a run of method cls that comes first, as {epochs: 3}"
    )
    method: str = option("scm", "how it is trained, and which map it cuts", choices=choices.methods)
    preset: str = option("paper", "the paper's settings or its published code's", choices=choices.presets)
    backend: str = option("auto", "kernels of the calibration", choices=choices.backends, resume=True)
    image_size: Count = option(224, "pixels of the images that the model takes")
    resize: Count | None = option(None, "pixels before the random crop; null: image_size * 256 / 224")
    attention_layers: list[int] | None = option(None, "layers whose attention is averaged; null: all")
    drop_path_rate: Share | None = option(None, "stochastic depth; null: the preset's")
    backbone_options: dict[str, Any] = option({}, "keywords of timm's model, as {depth: 4}")
    method_options: dict[str, Any] = option({}, "of the method, as {area: 0.35}; see docs/methods.md")
    calibration: dict[str, Any] = option({}, "keywords of SpatialCalibration, as {num_blocks: 2}")

    # Optimisation
    epochs: Count = option(30, "passes over the training split")
    image_budget: Count | None = option(
        None,
        "images to train on over all epochs: with many images, fewer epochs, but at least 4; null: no bound",
    )
    global_batch: Count | None = option(
        None, "images per optimiser step, over all processes; null: by how many there are, 8 to 256"
    )
    micro_batch: Count | None = option(
        64, "most images a process computes at once; null: its whole share", resume=True
    )
    lr: Positive = option(5e-5, "highest learning rate")
    min_lr: NotNegative = option(0.0, "learning rate at the end")
    warmup_epochs: NotNegative = option(0.5, "epochs in which the learning rate rises")
    betas: tuple[Share, Share] | None = option(None, "of AdamW; null: the preset's")
    weight_decay: NotNegative | None = option(None, "null: the preset's")
    decay_all: bool | None = option(None, "decay vectors and embeddings as well; null: the preset's")
    clip_grad: Positive | None = option(None, "largest norm of the gradient")
    head_lr: Positive | None = option(
        None, "highest learning rate of what is not of the backbone: the head, SAT's token; null: lr"
    )
    layer_decay: Annotated[float, Field(gt=0, le=1)] = option(
        1.0, "learning rate of a layer over that of the next one"
    )
    frozen_blocks: Annotated[int, Field(ge=0)] | None = option(
        None, "first blocks that stay as they are, with the embeddings; null: all is trained"
    )
    label_smoothing: Share = option(0.0, "probability that is shared among all classes")
    average: Share = option(0.0, "decay of the moving average of the weights that is kept as model; 0: none")
    small_size: Count | None = option(
        None, "pixels of the images in training, or in its first epochs; null: image_size"
    )
    small_epochs: NotNegative | None = option(
        None, "epochs, or parts of them, with images of small_size; null: all"
    )
    color_jitter: Share = option(
        0.0, "share by which brightness, contrast and saturation of the training images may differ"
    )
    seed: Annotated[int, Field(ge=0)] = option(0, "of weights, order and augmentation", compare=False)

    # Machine
    device: str = option("auto", "cpu, cuda, cuda:N or auto", resume=True)
    amp: str = option(
        "auto",
        "autocast; auto: bf16 on GPUs that have it",
        choices=choices.precisions,
        resume=True,
    )
    channels_last: bool = option(False, "memory format of the images and convolutions", resume=True)
    compile: bool = option(False, "torch.compile the model", resume=True)
    grad_checkpointing: bool = option(False, "recompute activations: slower, less memory", resume=True)

    # Evaluation
    validate_every: Count = option(
        1, "epochs from one validation to the next; the last epoch always has one", resume=True
    )
    protocol: str = option(
        "heldout", "who chooses the threshold; see docs/training.md", choices=choices.protocols
    )
    threshold: float | str | None = option(None, "for protocol fixed: in [0, 1), or such as between:0.3")
    rule: str = option(
        choices.BEST, "of the threshold that protocol heldout chooses", choices=choices.heldout_rules
    )
    best_metric: str = option(
        "gt_known",
        "metric of the validation split by which the best model is kept",
        choices=choices.metrics,
    )
    report: bool = option(True, "write report.html at the end", resume=True, compare=False)

    # Run
    out: str | None = option(
        None, "run folder; null: runs/<data>-<backbone>-<method>", resume=True, compare=False
    )
    resume: str = option(
        "no",
        "auto: continue the run in the folder, if there is one",
        choices=lambda: ("no", "auto"),
        resume=True,
        compare=False,
    )
    tensorboard: bool = option(
        False, "write the logs for TensorBoard too; needs scm-fast[tensorboard]", resume=True, compare=False
    )
    checkpoint_steps: Count = option(
        500, "optimiser steps between checkpoints; each epoch ends with one too", resume=True, compare=False
    )
    partner_timeout: Annotated[float, Field(gt=0)] = option(
        TIMEOUT,
        "seconds without an answer after which another process is given up",
        resume=True,
        compare=False,
    )

    def __post_init__(self) -> None:
        from ..models.methods import make_method

        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed():
                raise InputError(not_among(name, getattr(self, name), allowed()))
        make_method(self.method, self.method_options)
        if (self.threshold is None) == (self.protocol == "fixed"):
            raise InputError("threshold and protocol: `protocol: fixed` and a `threshold` go together")
        if self.threshold is not None:
            from ..threshold import make_threshold

            make_threshold(self.threshold)
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
        if self.small_size is None and self.small_epochs:
            raise InputError(f"small_epochs: {self.small_epochs:g} of which size? small_size says it")
        if self.small_size is not None and self.small_size >= self.image_size:
            raise InputError(
                f"small_size: {self.small_size} is not smaller than image_size {self.image_size}; "
                "null trains on images of that size"
            )
        for name, value in PRESET_DEFAULTS[self.preset].items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        if self.out is None:
            self.out = f"runs/{Path(self.data).name}-{self.backbone}-{self.method}"

    @property
    def calibrates(self) -> bool:
        """True if the calibration module takes part in training."""
        from ..models.methods import make_method

        return make_method(self.method, self.method_options).calibrates(self.calibration)

    def for_images(self, images: int) -> TrainConfig:
        """Return it for so many training images: with a global batch, if none is given, and within the budget."""
        epochs = self.epochs
        if self.image_budget is not None:
            epochs = min(epochs, max(FEWEST_EPOCHS, -(-self.image_budget // images)))
        return dataclasses.replace(self, epochs=epochs, global_batch=self.global_batch or batch_for(images))

    def source(self) -> DataSource:
        """The data, none of it opened yet."""
        from ..data import DataSource

        return DataSource(
            self.data, self.layout, self.images, self.boxes, self.skip_bad_images, self.val_boxes
        )

    @property
    def validation_name(self) -> str:
        """The validation split, and whose boxes it has if they are not its own."""
        return self.val_split + (f" (pseudo-boxes of {self.val_boxes})" if self.val_boxes else "")

    def save(self, path: Path) -> None:
        path.write_text(yaml.safe_dump(self.as_dict(), sort_keys=False))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as a YAML file has them."""
        values = dataclasses.asdict(self)
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def batch_for(images: int) -> int:
    """The power of two that gives an epoch of so many images 100 optimiser steps or more, within 8 and 256; no more
    than there are images."""
    fitting = 2 ** max(0, (images // STEPS_PER_EPOCH).bit_length() - 1)
    return max(1, min(images, max(SMALLEST_BATCH, min(LARGEST_BATCH, fitting))))


OPTIONS = {option.name: option for option in dataclasses.fields(TrainConfig)}
KINDS = typing.get_type_hints(TrainConfig, include_extras=True)
CHOICES = {name: o.metadata["choices"] for name, o in OPTIONS.items() if o.metadata["choices"] is not None}


def make_config(values: dict[str, Any], source: str) -> TrainConfig:
    """A checked configuration; `source` says in errors where the values came from."""
    unknown = [not_among("unknown option", name, OPTIONS) for name in values if name not in OPTIONS]
    if unknown:
        raise InputError(f"{source}: " + "; ".join(unknown))
    try:
        return TrainConfig(**values)
    except pydantic.ValidationError as error:
        problems = {e["loc"][:1]: e for e in error.errors()}  # a union reports each of its members
        raise InputError(f"{source}: " + "; ".join(map(_sentence, problems.values()))) from None


def check_kinds(values: dict[str, Any], source: str) -> None:
    """Raise an InputError for values of the wrong kind, such as text for a number: at once, without torch."""
    problems = []
    for name, value in values.items():
        try:
            pydantic.TypeAdapter(KINDS[name]).validate_python(value)
        except pydantic.ValidationError as error:
            problems.append(_about(name, error.errors()[-1 if len(error.errors()) > 1 else 0]))
    if problems:
        raise InputError(f"{source}: " + "; ".join(problems))


def _sentence(error: Any) -> str:
    if not error["loc"]:  # of __post_init__
        return str(error["ctx"]["error"])
    return _about(error["loc"][0], error)


def _about(name: str, error: Any) -> str:
    return f"{name}: {error['msg'][0].lower()}{error['msg'][1:]}, got {error['input']!r}"


def not_among(what: str, given: object, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(str(given), known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}"
    return f"{what} {given!r}: {hint}"
