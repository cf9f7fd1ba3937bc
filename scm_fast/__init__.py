"""Spatial Calibration Module (SCM): a vision transformer trained on labels alone also tells where."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import InputError

if TYPE_CHECKING:
    from .backends import available_backends, use_backend
    from .localizer import Localizer
    from .models import Localization, LocalizationModel, create_model, load_model, save_model
    from .spatial_calibration import CalibrationOutput, CalibrationTrace, SpatialCalibration

__version__ = "0.1.0"

# Imported when first used: torch and timm take seconds, and `scm-fast --help` needs neither.
_LAZY = {
    "CalibrationOutput": ".spatial_calibration",
    "CalibrationTrace": ".spatial_calibration",
    "Localization": ".models",
    "LocalizationModel": ".models",
    "Localizer": ".localizer",
    "SpatialCalibration": ".spatial_calibration",
    "available_backends": ".backends",
    "create_model": ".models",
    "load_model": ".models",
    "save_model": ".models",
    "use_backend": ".backends",
}

__all__ = [
    "CalibrationOutput",
    "CalibrationTrace",
    "InputError",
    "Localization",
    "LocalizationModel",
    "Localizer",
    "SpatialCalibration",
    "available_backends",
    "create_model",
    "load_model",
    "save_model",
    "use_backend",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name], __name__), name)
