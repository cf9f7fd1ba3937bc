"""The implementation that serves a call: `reference`, `torch`, `triton`, or `auto` for the fastest that can.

Asked for in three ways, the first that says something wins: the `backend=` argument, `with use_backend(...)`,
the environment variable `SCM_FAST_BACKEND`; `auto` says nothing. A backend that was asked for and cannot serve
is an error with the reason; where nobody asks, the fastest that can is taken, and `available_backends()` says why.
`custom_op` is how an op is registered with PyTorch: autograd and `torch.compile` see it as one operation.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import os
import typing
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import torch

from .errors import InputError

BACKENDS = ("reference", "torch", "triton")
ENVIRONMENT_VARIABLE = "SCM_FAST_BACKEND"
# Where the torch and the triton backend have their module of each op, with functions of the same names.
_PACKAGES = {"torch": f"{__package__}.ops", "triton": f"{__package__}.kernels"}
NAMESPACE = "scm_fast"  # of the ops that are registered with PyTorch

_in_context: ContextVar[str] = ContextVar("scm_fast_backend", default="auto")


def check_backend_name(name: str, source: str = "backend") -> str:
    if name not in (*BACKENDS, "auto"):
        raise InputError(f"{source} must be one of {', '.join(BACKENDS)} or auto, got {name!r}")
    return name


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Make calls within the `with` whose own `backend` is `auto` use `name`. Local to the thread or task.

    `auto` takes back what an outer `with` chose: the environment variable decides, as without any.
    """
    token = _in_context.set(check_backend_name(name))
    try:
        yield
    finally:
        _in_context.reset(token)


class Request(NamedTuple):
    """The backend that was asked for, and by what; `auto` where nobody chose."""

    name: str
    source: str  # for people: "the backend argument", "use_backend", "SCM_FAST_BACKEND", "nobody"


def requested_backend(argument: str = "auto") -> Request:
    """Return what argument, context or environment ask for: the first that does not say `auto`."""
    from_variable = os.environ.get(ENVIRONMENT_VARIABLE, "auto")
    if check_backend_name(argument) != "auto":
        return Request(argument, "the backend argument")
    if (in_context := _in_context.get()) != "auto":
        return Request(in_context, "use_backend")
    if check_backend_name(from_variable, ENVIRONMENT_VARIABLE) != "auto":
        return Request(from_variable, ENVIRONMENT_VARIABLE)
    return Request("auto", "nobody")


@functools.cache
def why_no_kernels() -> str:
    """Return why the Triton kernels cannot be imported; empty when they can. Triton itself is not imported."""
    triton = importlib.util.find_spec("triton")
    if triton is None:
        return "triton is not installed; torch brings it with its builds for CUDA and ROCm"
    if not Path(str(triton.origin)).with_name("language").joinpath("target_info.py").is_file():
        return "this triton is too old: the kernels need the one of torch 2.9, or a later one"
    if importlib.util.find_spec(_PACKAGES["triton"]) is None:
        return f"{_PACKAGES['triton']} is not installed (run `pip install -e .` in the clone)"
    return ""


_WHY_NO_KERNELS = why_no_kernels()  # found out once: compilers do not see through a look at files


def interpreting() -> bool:
    """Tell whether Triton kernels run in the interpreter, on the CPU (`TRITON_INTERPRET=1`)."""
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
    name = requested_backend(argument).name
    if name == "auto":
        # The interpreter is for tests: it is never what `auto` means.
        return "torch" if interpreting() or why_not("triton", device) else "triton"
    if reason := why_not(name, device):
        raise InputError(f"backend {name!r} was asked for and cannot serve: {reason}")
    return name


def op_backend(op: str, argument: str, device: torch.device) -> str:
    """`torch` or `triton` for a call of a single op; the reference has no counterpart for every op."""
    name = resolve_backend(argument, device)
    if name == "reference":
        raise InputError(f"{op} runs on the torch or triton backend; scm_fast.reference has the literal one")
    return name


def implementation(op: str, backend: str) -> ModuleType:
    """The module that computes `op` on torch or triton: `ops/X.py` or `kernels/X.py`.

    Imported when first used: the package works without triton.
    """
    return importlib.import_module(f"{_PACKAGES[backend]}.{op}")


def available_backends() -> dict[str, str]:
    """Every backend with the reason why it cannot serve on this machine; an empty string when it can.

    >>> available_backends()
    {'reference': '', 'torch': '', 'triton': 'no CUDA or ROCm device is available'}
    """
    return {name: why_not(name) for name in BACKENDS}


def _in_schema(kind: Any) -> Any:
    """Return a parameter's type as every PyTorch infers a schema from it: 2.6 does not know `collections.abc`."""
    return typing.Sequence[get_args(kind)] if get_origin(kind) is Sequence else kind  # type: ignore[misc]


def custom_op(name: str) -> Callable:
    """`torch.library.custom_op("scm_fast::name")` whose body ignores autocast: fields stay in float32.

    PyTorch gives an op tensors and plain values only. A parameter of the body whose type is a NamedTuple stands
    for its fields: callers spread it, `op(S, *settings)`, and the body receives it whole.
    """

    def register(body: Callable):
        kinds = get_type_hints(body)
        result = kinds.pop("return")
        fields: dict[str, Any] = {}
        for parameter, kind in kinds.items():
            fields |= get_type_hints(kind) if hasattr(kind, "_fields") else {parameter: kind}

        def flat_body(*values):
            rest = iter(values)
            arguments = [
                kind(*islice(rest, len(kind._fields))) if hasattr(kind, "_fields") else next(rest)
                for kind in kinds.values()
            ]
            with torch.autocast(values[0].device.type, enabled=False):
                return body(*arguments)

        parameters = [
            inspect.Parameter(field, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=_in_schema(kind))
            for field, kind in fields.items()
        ]
        flat_body.__signature__ = inspect.Signature(parameters, return_annotation=result)  # type: ignore[attr-defined]
        return torch.library.custom_op(f"{NAMESPACE}::{name}", flat_body, mutates_args=())

    return register
