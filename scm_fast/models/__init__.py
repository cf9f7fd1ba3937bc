"""Localisation models: backbones with a CLS token, methods, checkpoints."""

from .checkpoint import load_model, save_model
from .classifier import load_classifier
from .config import ModelConfig
from .factory import create_model
from .localization_model import Localization, LocalizationModel, TrainingOutput

__all__ = [
    "Localization",
    "LocalizationModel",
    "ModelConfig",
    "TrainingOutput",
    "create_model",
    "load_classifier",
    "load_model",
    "save_model",
]
