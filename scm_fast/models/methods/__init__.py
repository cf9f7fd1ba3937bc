"""Methods: every module of this package registers one."""

import importlib
import pkgutil

from ..localization_model import Method, Published
from .registry import get_method, make_method, method_names, published_method, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Method",
    "Published",
    "get_method",
    "make_method",
    "method_names",
    "published_method",
    "register",
]
