"""Which implementation serves a call: `reference`, `torch`, `triton`, or `auto` for the fastest that can.

Asked for in three ways, the first that says something wins: the `backend=` argument, `with use_backend(...)`,
the environment variable `SCM_FAST_BACKEND`. A backend that was asked for and cannot serve is an error with
the reason; `auto` falls back, and `available_backends()` says why.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from contextvars import ContextVar

import torch

from .errors import InputError

BACKENDS = ("reference", "torch", "triton")
ENVIRONMENT_VARIABLE = "SCM_FAST_BACKEND"

_in_context: ContextVar[str | None] = ContextVar("scm_fast_backend", default=None)


def check_backend_name(name: str, source: str = "backend") -> str:
    if name not in (*BACKENDS, "auto"):
        raise InputError(f"{source} must be one of {', '.join(BACKENDS)} or auto, got {name!r}")
    return name


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Within the `with`, calls whose own `backend` is `auto` use `name`. Local to the thread or task."""
    token = _in_context.set(check_backend_name(name))
    try:
        yield
    finally:
        _in_context.reset(token)


def requested_backend(argument: str = "auto") -> str:
    """The name asked for by argument, context or environment; `auto` where none of them chooses."""
    if check_backend_name(argument) != "auto":
        return argument
    in_context = _in_context.get()
    if in_context is not None:
        return in_context
    return check_backend_name(os.environ.get(ENVIRONMENT_VARIABLE, "auto"), ENVIRONMENT_VARIABLE)


def _find_triton_kernels() -> str:
    """Why the Triton kernels cannot be imported; empty when they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (pip install triton)"
    if importlib.util.find_spec("scm_fast.kernels") is None:
        return "scm_fast.kernels is not installed (run `pip install -e .` in the clone)"
    return ""


_WHY_NO_KERNELS = _find_triton_kernels()


def interpreting() -> bool:
    """Whether Triton kernels run in the interpreter, on the CPU (`TRITON_INTERPRET=1`)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def why_not(backend: str, device: torch.device | str | None = None) -> str:
    """The reason why `backend` cannot serve tensors on `device`; empty when it can.

    Without a device: on the best device of this machine.
    """
    if backend != "triton":
        return ""
    if _WHY_NO_KERNELS:
        return _WHY_NO_KERNELS
    if interpreting():
        return ""
    if device is None:
        return "" if torch.cuda.is_available() else "no CUDA or ROCm device is available"
    kind = torch.device(device).type
    return "" if kind == "cuda" else f"the tensors are on {kind!r}; Triton kernels need a CUDA or ROCm device"


def resolve_backend(argument: str, device: torch.device) -> str:
    """The backend that serves a call on `device`: what was asked for, or the fastest that can."""
    name = requested_backend(argument)
    if name == "auto":
        # The interpreter is for tests: it is never what `auto` means.
        return "torch" if interpreting() or why_not("triton", device) else "triton"
    if reason := why_not(name, device):
        raise InputError(f"backend {name!r} was asked for and cannot serve: {reason}")
    return name


def available_backends() -> dict[str, str]:
    """Every backend with the reason why it cannot serve on this machine; an empty string when it can.

    >>> available_backends()
    {'reference': '', 'torch': '', 'triton': 'no CUDA or ROCm device is available'}
    """
    return {name: why_not(name) for name in BACKENDS}
