"""The device to run on, and in which precision."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

import torch

from .errors import InputError

AMP_DTYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}  # of autocast, by option
# What the drivers of NVIDIA, of AMD and of a Windows machine's Linux put into /dev for a GPU.
DEVICE_FILES = (Path("/dev/nvidia0"), Path("/dev/kfd"), Path("/dev/dxg"))
# With one of these set, whoever set it chose which GPUs are seen.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, or CUDA if there is one; an InputError if it is not there or not supported."""
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        _warn_of_an_unseen_gpu()
        return torch.device("cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise InputError(f"device must be cpu, cuda or cuda:N, got {str(device)!r}") from None
    if found.type not in ("cpu", "cuda"):
        raise InputError(
            f"device {str(device)!r} is not supported: scm_fast runs on cpu, cuda or cuda:N. An AMD GPU is cuda "
            "too, with torch's ROCm build"
        )
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device {str(device)!r} was asked for, but torch sees {torch.cuda.device_count()} GPUs"
        )
    return found


def use_device(device: str | torch.device | None) -> torch.device:
    """Resolve the device, and if it is a GPU of a number make it the current one of this process."""
    found = resolve_device(device)
    if found.type == "cuda" and found.index is not None:
        torch.cuda.set_device(found)
    return found


@functools.cache
def _warn_of_an_unseen_gpu() -> None:
    """Say once that the CPU takes the place of a GPU that is there."""
    file = next((file for file in DEVICE_FILES if file.exists()), None)
    if file is None or any(name in os.environ for name in VISIBLE):
        return
    built = torch.version.cuda or torch.version.hip
    reason = (
        "its driver may be too old or not running; nvidia-smi or rocm-smi tells"
        if built
        else "it was built for the CPU alone; pytorch.org has the builds for GPUs"
    )
    logging.getLogger("scm_fast").warning(
        "running on the CPU: this machine has a GPU (%s), but torch %s sees none: %s",
        file,
        torch.__version__,
        reason,
    )


def amp_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The dtype of autocast that an option names; None for none. `auto` is a GPU's 16-bit type, best bf16."""
    if name == "auto":
        if device.type != "cuda":
            return None
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    if name not in AMP_DTYPES:
        raise InputError(f"amp must be one of auto, {', '.join(AMP_DTYPES)}, got {name!r}")
    return AMP_DTYPES[name]


def precision_name(amp: torch.dtype | None) -> str:
    """The precision of a network's products, for people."""
    return "float32" if amp is None else str(amp).removeprefix("torch.")
