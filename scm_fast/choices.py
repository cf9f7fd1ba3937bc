"""Values that some options take, without importing the modules that know them: most import torch, for seconds.

Once such a module is imported, it is asked: then names count that somebody has registered. Until then these are the
names that the package comes with; a test compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

BEST = "best"  # in place of a rule of thresholds: the one that serves best
METRICS = (
    *("top1_cls", "top5_cls", "top1_loc", "top5_loc", "gt_known", "gt_known_published"),
    *("max_box_acc", "max_box_acc_v2", "px_ap", "mean_iou"),
)
_PACKAGE = Path(__file__).parent


def layouts() -> Iterable[str]:
    return "auto", *(_asked("data.layouts", "layout_names") or _modules("data/layouts"))


def takers(option: str) -> str:
    """The layouts that take `images` or `boxes`, in words."""
    names = {"images": ["wsol"], "boxes": ["ilsvrc", "folder"]}[option]
    return ", ".join(_asked("data.opening", "takers", option) or names)


def methods() -> Iterable[str]:
    return _asked("models.methods", "method_names") or _modules("models/methods")


def maps() -> Iterable[str]:
    names = ("attention", "chefer", "gradcam", "layercam", "rollout", "rpam", "tokencut")
    return _asked("models.maps", "map_names") or names


def presets() -> Iterable[str]:
    return "paper", "official"


def backends() -> Iterable[str]:
    return "auto", "reference", "torch", "triton"


def precisions() -> Iterable[str]:
    return "auto", "none", "bf16", "fp16"


def protocols() -> Iterable[str]:
    return "heldout", "unboxed", "fixed", "maxbox", "published"


def heldout_rules() -> Iterable[str]:
    names = (BEST, "between", "geometric", "deviation", "global")
    return _asked("threshold", "rules_to_choose") or names


def metrics() -> Iterable[str]:
    return METRICS


def _asked(module: str, function: str, *arguments: str) -> Any:
    """Return what a function of one of our modules says; None if the module is not imported."""
    name = f"scm_fast.{module}"
    return getattr(import_module(name), function)(*arguments) if name in sys.modules else None


def _modules(folder: str) -> list[str]:
    """Names of the modules in a folder of the package where each registers one thing of its own name."""
    return sorted(
        file.stem for file in (_PACKAGE / folder).glob("*.py") if file.stem not in ("__init__", "registry")
    )
