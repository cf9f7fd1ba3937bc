"""Localisation models: backbones with a CLS token, the semantic head, checkpoints."""

from .checkpoint import load_model, save_model
from .config import ModelConfig
from .factory import create_model
from .localization_model import Localization, LocalizationModel

__all__ = ["Localization", "LocalizationModel", "ModelConfig", "create_model", "load_model", "save_model"]
