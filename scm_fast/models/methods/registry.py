"""The table of methods."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import pydantic
from torch import Tensor

from ...errors import InputError
from ..localization_model import Method, Published

_methods: dict[str, type[Method]] = {}
M = TypeVar("M", bound=Method)


def register(method: type[M]) -> type[M]:
    """Class decorator: makes a method known by its name, with its annotated fields as options."""
    made = pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))(method)
    _methods[method.name] = cast(type[M], made)
    return cast(type[M], made)


def method_names() -> list[str]:
    return sorted(_methods)


def get_method(name: str) -> type[Method]:
    if name not in _methods:
        near = difflib.get_close_matches(str(name), _methods, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"method must be one of {', '.join(method_names())}, got {name!r}{hint}")
    return _methods[name]


def make_method(name: str, options: Mapping[str, Any]) -> Method:
    """The method of that name with its options, or an InputError in a sentence."""
    method = get_method(name)
    known = [option.name for option in dataclasses.fields(method)]
    if not isinstance(options, Mapping):
        raise InputError(f"method_options must be a mapping, as {{area: 0.25}}, got {options!r}")
    if unknown := [str(option) for option in options if option not in known]:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise InputError(f"method {name!r} has no option {', '.join(unknown)}; {has}")
    try:
        return method(**options)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"method {name!r}: {first['loc'][0]}: {first['msg'][0].lower()}{first['msg'][1:]}, "
            f"got {first['input']!r}"
        ) from None


def published_method(state: dict[str, Tensor]) -> tuple[type[Method], Published] | None:
    """Return the method whose training code wrote these weights."""
    for method in _methods.values():
        if (found := method().published(state)) is not None:
            return method, found
    return None


def published_titles() -> str:
    """Return the titles of the methods whose authors' files can be read."""
    return ", ".join(m.title for m in _methods.values() if m.published is not Method.published)
