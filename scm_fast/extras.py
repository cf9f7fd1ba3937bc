"""Packages that only some users need, which pip installs as extras of this one."""

from __future__ import annotations

import importlib

from .errors import InputError


def require_extra(package: str, extra: str, purpose: str) -> None:
    """Raise an InputError that says what to install if `package` is not there."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise InputError(f"{purpose} needs {package} ({error}): pip install 'scm-fast[{extra}]'") from error
