"""The device to run on, and in which precision."""

from __future__ import annotations

import torch

from .errors import InputError

AMP_DTYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}  # of autocast, by option


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, or CUDA if there is one; an InputError if it is not there."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise InputError(f"device must be cpu, cuda or cuda:N, got {str(device)!r}") from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device {str(device)!r} was asked for, but torch sees {torch.cuda.device_count()} GPUs"
        )
    return found
