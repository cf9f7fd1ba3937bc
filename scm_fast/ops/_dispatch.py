"""What every op shares: how it is registered, and how it chooses its implementation."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType

import torch

from ..backends import resolve_backend
from ..errors import InputError


def custom_op(name: str) -> Callable:
    """`torch.library.custom_op("scm_fast::name")` whose body ignores autocast: fields stay in float32."""

    def register(function: Callable):
        @functools.wraps(function)
        def body(*args):
            with torch.autocast(args[0].device.type, enabled=False):
                return function(*args)

        schema = torch.library.infer_schema(function, mutates_args=())
        return torch.library.custom_op(f"scm_fast::{name}", body, mutates_args=(), schema=schema)

    return register


def op_backend(op: str, backend: str, device: torch.device) -> str:
    """`torch` or `triton` for a call of a single op; the reference has no counterpart for every op."""
    name = resolve_backend(backend, device)
    if name == "reference":
        raise InputError(f"{op} runs on the torch or triton backend; scm_fast.reference has the literal one")
    return name


def kernels(op: str) -> ModuleType:
    """The Triton kernels of `op`, imported when first used: the package works without triton."""
    return importlib.import_module(f"scm_fast.kernels.{op}")
