"""Describe the machine of a run in a line: nobody should find out by its speed that the GPU was not taken."""

from __future__ import annotations

import torch

from .. import distributed
from ..backends import resolve_backend
from ..devices import amp_dtype, precision_name
from ..environment import device_name
from .config import TrainConfig


def machine_line(config: TrainConfig, device: torch.device) -> str:
    """Name the devices of all processes, the precision and the kernels."""
    count = distributed.world_size()
    devices = f"{count} x {device.type}" if count > 1 else str(device)
    parts = [f"running on {devices} ({device_name(device)})", precision_name(amp_dtype(config.amp, device))]
    if config.calibrates:
        parts.append(f"{calibration_backend(config, device)} kernels")
    return ", ".join(parts)


def calibration_backend(config: TrainConfig, device: torch.device) -> str:
    """Return the backend of the calibration; an InputError if the one asked for cannot serve."""
    return resolve_backend(config.calibration.get("backend", config.backend), device)
