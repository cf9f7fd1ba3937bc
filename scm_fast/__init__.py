"""Spatial Calibration Module (SCM): a vision transformer trained on labels alone also tells where."""

from .backends import available_backends, use_backend
from .calibration import CalibrationOutput, CalibrationTrace, SpatialCalibration
from .errors import InputError

__version__ = "0.1.0"

__all__ = [
    "CalibrationOutput",
    "CalibrationTrace",
    "InputError",
    "SpatialCalibration",
    "available_backends",
    "use_backend",
]
