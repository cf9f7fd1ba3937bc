"""Training: `scm_fast/cli/train.py` puts these parts together."""

from typing import TYPE_CHECKING, Any

from .config import TrainConfig, make_config

if TYPE_CHECKING:
    from .stopping import Diverged, Interrupted
    from .trainer import Trainer

__all__ = ["Diverged", "Interrupted", "TrainConfig", "Trainer", "make_config"]


def __getattr__(name: str) -> Any:
    """What needs torch, when it is first used: configurations are read without it."""
    if name in ("Diverged", "Interrupted"):
        from . import stopping

        return getattr(stopping, name)
    if name == "Trainer":
        from .trainer import Trainer

        return Trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
