"""Images of one class: there is nothing to tell it from, so its labels teach nothing.

What a pretrained network attends to is the object more often than not. So its attention is kept as it is, with a
threshold that the images choose.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from .. import distributed
from ..data import DataSource
from ..devices import amp_dtype
from ..errors import InputError
from ..evaluation import Predictor, evaluate
from .building import build_model
from .config import TrainConfig, make_config
from .run_folder import RunFolder
from .validation import evaluate_kept_model, validation_settings

logger = logging.getLogger("scm_fast")


def keep_untrained(config: TrainConfig, device: torch.device, source: DataSource) -> None:
    """Save the network of a configuration as it is, with method cls, and evaluate it. All processes call it."""
    dataset = source.split(config.train_split)
    (name,) = dataset.class_names
    reason = f"{dataset.root} has one class, {name!r}, and there is nothing to tell it from"
    if config.pretrained is False:
        raise InputError(
            f"{reason}: only a pretrained network's attention could be kept, and pretrained is false"
        )
    if distributed.is_first():
        logger.warning(
            "%s: labels cannot teach where it is. Nothing is trained, and the pretrained network's attention is "
            "kept. For a map that was trained, put photos without it into a folder of their own, such as %s",
            reason,
            _beside(Path(dataset.root), dataset.records[0].id),
        )
    own: dict[str, Any] = {"method": "cls", "method_options": {}, "calibration": {}, "frozen_blocks": None}
    config = make_config(config.as_dict() | own, "one class")
    assert config.out is not None
    folder, amp = RunFolder(config.out), amp_dtype(config.amp, device)
    model = build_model(config, dataset).to(device).eval()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    distributed.on_first(folder.check, config, config.resume == "auto")
    distributed.on_first(folder.prepare, config, weights)
    done = evaluate(Predictor(model, device, amp=amp), source, validation_settings(config))
    model.config.threshold = done.result.threshold
    distributed.on_first(folder.save_model, model, "last")
    evaluate_kept_model(config, source, folder.path / "last", device, amp, done.metrics)


def _beside(root: Path, image: str) -> Path:
    """A folder beside that of the class: in the training folder, if there is one."""
    return root / Path(image).parts[0] / "other" if len(Path(image).parts) > 2 else root / "other"
