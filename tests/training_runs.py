"""A small training run, and what two runs have in common. Used by the tests that start processes."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from safetensors.torch import load_file

from scm_fast import load_model

# 21 training images: 4 steps of 5 an epoch, which two processes share as 3 + 2. Mid-epoch checkpoints.
# No biases in the attention: that of the keys has no gradient but rounding noise, which AdamW turns into steps
# of full length.
CONFIG = {
    "backbone": "vit_tiny_patch16_224",
    "backbone_options": {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "qkv_bias": False},
    "pretrained": False,
    "image_size": 32,
    "epochs": 2,
    "warmup_epochs": 0,
    "global_batch": 5,
    "lr": 1e-3,
    "workers": 0,
    "device": "cpu",
    "checkpoint_steps": 3,
    "report": False,
}
MODELS = ("last", "best_gt_known", "best_top1_cls")


def rows(folder: Path, log: str) -> list[dict[str, str]]:
    """A log as it was written, all digits, but for the speed."""
    with (folder / f"{log}.csv").open() as file:
        found = list(csv.DictReader(file))
    return [{name: value for name, value in row.items() if name != "images_per_second"} for row in found]


def weights(folder: Path, model: str = "last") -> dict[str, torch.Tensor]:
    return load_file(folder / model / "model.safetensors")


def assert_same_run(first: Path, second: Path) -> None:
    """The same logs and the same models with their thresholds, bit for bit."""
    assert [row["step"] for row in rows(first, "steps")] == [str(step) for step in range(8)]
    for log in ("steps", "log"):
        assert rows(first, log) == rows(second, log)
    for model in MODELS:
        assert load_model(first / model).config == load_model(second / model).config
        for name, value in weights(first, model).items():
            assert torch.equal(value, weights(second, model)[name]), f"{model}: {name}"
