"""Spatial Calibration Module (SCM): a vision transformer trained on labels alone also tells where."""

from importlib import import_module
from typing import Any

from .backends import available_backends, use_backend
from .errors import InputError
from .spatial_calibration import CalibrationOutput, CalibrationTrace, SpatialCalibration

__version__ = "0.1.0"

# Imported when first used: timm, torchvision and OpenCV take seconds.
_LAZY = {
    "Localization": ".models",
    "LocalizationModel": ".models",
    "Localizer": ".localizer",
    "create_model": ".models",
    "load_model": ".models",
    "save_model": ".models",
}

__all__ = [
    "CalibrationOutput",
    "CalibrationTrace",
    "InputError",
    "SpatialCalibration",
    "available_backends",
    "use_backend",
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name], __name__), name)
