"""How an op is registered with PyTorch: autograd and `torch.compile` see it as one operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import islice
from typing import Any, get_type_hints

import torch


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
            inspect.Parameter(field, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
            for field, kind in fields.items()
        ]
        flat_body.__signature__ = inspect.Signature(parameters, return_annotation=result)  # type: ignore[attr-defined]
        return torch.library.custom_op(f"scm_fast::{name}", flat_body, mutates_args=())

    return register
