"""Training: `scm_fast/cli/train.py` puts these parts together."""

from typing import TYPE_CHECKING, Any

from .config import TrainConfig, make_config

if TYPE_CHECKING:
    from .object_share import measure_object_share
    from .stopping import Diverged, Interrupted
    from .trainer import Trainer

__all__ = ["Diverged", "Interrupted", "TrainConfig", "Trainer", "make_config", "measure_object_share"]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first used: configurations are read without it."""
    if name in ("Diverged", "Interrupted"):
        from . import stopping

        return getattr(stopping, name)
    if name == "measure_object_share":
        from .object_share import measure_object_share

        return measure_object_share
    if name == "Trainer":
        from .trainer import Trainer

        return Trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
