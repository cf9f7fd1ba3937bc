"""Training: `scm_fast/cli/train.py` puts these parts together."""

from .config import TrainConfig, make_config
from .stopping import Diverged, Interrupted
from .trainer import Trainer

__all__ = ["Diverged", "Interrupted", "TrainConfig", "Trainer", "make_config"]
