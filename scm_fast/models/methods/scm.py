"""SCM (Bai et al., ECCV 2022): TS-CAM with a calibration of its two maps, which takes part in training alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ..architectures import Features
from ..localization_model import LocalizationModel, Method, Published, TrainingOutput
from .registry import register
from .tscam import backbone_and_head

# Parameters of a block in the authors' files, by ours.
NAMES = {"beta": "thred", "lam": "fuse._loss_rate"}


@register
class Scm(Method):
    name = "scm"
    title = "SCM"
    row_in_training = True

    def calibrates(self, calibration: Mapping[str, Any]) -> bool:
        return True

    def train(self, model: LocalizationModel, features: Features) -> TrainingOutput:
        assert model.calibration is not None
        semantic = model.head(features.patches)
        return TrainingOutput(model.calibration(semantic, features.attention).logits, {})

    def published(self, state: dict[str, Tensor]) -> Published | None:
        count = len({name for name in state if re.fullmatch(r"layers\.\d+\.thred", name)})
        if not count:
            return None
        blocks = {f"layers.{i}.{theirs}" for i in range(count) for theirs in NAMES.values()}
        ours = backbone_and_head({name: state[name] for name in state if name not in blocks})
        for parameter, theirs in NAMES.items():
            values = [state[name] for i in range(count) if (name := f"layers.{i}.{theirs}") in state]
            if len(values) != count:
                raise InputError(f"layers.*.{theirs} is missing in some of the {count} blocks")
            ours[f"calibration.{parameter}"] = torch.cat(values).to(state["pos_embed"].dtype)
        settings = {"num_blocks": count, "iterations": (16, *(4,) * (count - 1))}
        return Published({"calibration": settings}, ours)
