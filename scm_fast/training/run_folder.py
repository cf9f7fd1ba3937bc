"""The folder of a run: configuration, logs, what a run is resumed from, and the models that are kept.

    config.yaml       the resolved configuration
    steps.csv         loss and learning rate of every optimiser step
    log.csv           figures of every epoch
    checkpoint.pt     all that resuming needs
    last/             the newest model,                                     \\
    best_gt_known/    the best by the chosen metric of the validation split  | for scm_fast.load_model
    best_top1_cls/    the best by classification                            /
    evaluation/       the test split, at the end
    pretraining/      the run that came first, if the configuration asks for one
    tensorboard/      with --tensorboard: steps.csv and log.csv again
    run.lock          while a process is at work here: which one
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .. import distributed
from ..errors import InputError
from ..files import readable_size, replacing
from ..lock import FolderLock
from ..models import LocalizationModel, save_model
from ..models.checkpoint import CONFIG_FILE
from ..models.config import ModelConfig
from ..models.weights import WEIGHTS_FILE, read_file
from .config import OPTIONS, TrainConfig, make_config
from .recipes import read_yaml


class RunFolder:
    """Only the first process writes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoint_file = self.path / "checkpoint.pt"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands from training into this folder. All processes of this one enter together."""
        lock = FolderLock(self.path)
        distributed.on_first(lock.acquire)
        try:
            yield
        finally:
            if distributed.is_first():
                lock.release()

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint_file.is_file()

    def check(self, config: TrainConfig, resume: bool) -> None:
        """Raise an InputError if the run that is in the folder is in the way, or another one."""
        if resume and self.has_checkpoint:
            self._check_same_run(config)
        elif self.has_checkpoint:
            raise InputError(
                f"{self.path}: there is a run here. Continue it with --resume auto, or give --out another folder"
            )

    def prepare(self, config: TrainConfig, model_bytes: int) -> None:
        """Make the folder, and find out before the first step what would go wrong at the first checkpoint."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with replacing(self.path / "config.yaml") as partial:
                config.save(partial)
        except OSError as error:
            raise InputError(f"{self.path}: the run folder cannot be written ({error.strerror})") from error
        # Weights, two moments and the average if there is one in checkpoint.pt, which is replaced by a second one;
        # three models. A run that is resumed has some of it already.
        copies = 2 * (3 + (config.average > 0)) + 3
        there = [self.checkpoint_file, *self.path.glob(f"*/{WEIGHTS_FILE}")]
        present = sum(file.stat().st_size for file in there if file.is_file())
        needed, free = model_bytes * copies - present, shutil.disk_usage(self.path).free
        if free < needed:
            raise InputError(
                f"{self.path}: checkpoints need {readable_size(needed)}, and {readable_size(free)} are free"
            )

    def _check_same_run(self, config: TrainConfig) -> None:
        file = self.path / "config.yaml"
        # An option that the run knew nothing of has its default, as it had then.
        before, now = make_config(read_yaml(file), str(file)).as_dict(), config.as_dict()
        if before["epochs"] != now["epochs"]:
            self._check_extension(before, config)
            before["epochs"] = now["epochs"]
        changed = [
            f"{name} was {before[name]!r} and is now {now[name]!r}"
            for name in now
            if not OPTIONS[name].metadata["resume"] and before[name] != now[name]
        ]
        if changed:
            raise InputError(
                f"{self.path}: cannot resume, this is another run: {'; '.join(changed)}. Give --out another folder"
            )

    def _check_extension(self, before: dict[str, Any], config: TrainConfig) -> None:
        """Raise an InputError if the run cannot have that many epochs instead of those it was begun with."""
        asked = f"{self.path}: epochs was {before['epochs']} and is now {config.epochs}"
        if config.epochs < before["epochs"]:
            raise InputError(f"{asked}: a run can get more epochs, not fewer. Give --out another folder")
        if config.min_lr != config.lr or before["lr"] != before["min_lr"]:
            raise InputError(
                f"{asked}: its learning rate falls from {config.lr:g} to {config.min_lr:g} over the epochs that a "
                "run is begun with, so with more of them it is another run. Only one whose learning rate stays "
                "(--min-lr as large as --lr) can be extended. To train on from this one's model: "
                f"--pretrained {self.path / 'last'} --out another folder"
            )

    def save_checkpoint(self, state: dict[str, Any], model: LocalizationModel) -> None:
        try:
            with replacing(self.checkpoint_file) as partial:
                torch.save(state, partial)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            good = self.checkpoint_file if self.has_checkpoint else "none yet"
            raise InputError(
                f"{self.checkpoint_file}: the checkpoint could not be written ({error}); last good one: {good}"
            ) from error
        self.save_model(model, "last")

    def load_checkpoint(self) -> dict[str, Any]:
        return read_file(self.checkpoint_file)

    def model_config(self, name: str) -> ModelConfig:
        """Read the configuration of a model that was saved here."""
        return ModelConfig.read(self.path / name / CONFIG_FILE)

    def save_model(self, model: LocalizationModel, name: str) -> None:
        try:
            save_model(model, self.path / name)
        except OSError as error:
            raise InputError(f"{self.path / name}: the model could not be written ({error})") from error
