"""Training: `scm_fast/cli/train.py` puts these parts together."""

from .config import TrainConfig, make_config
from .trainer import Diverged, Interrupted, Trainer

__all__ = ["Diverged", "Interrupted", "TrainConfig", "Trainer", "make_config"]
