"""Layouts of data sets: every module of this package registers one."""

import importlib
import pkgutil

from .registry import Layout, all_layouts, layout_names, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["Layout", "all_layouts", "layout_names", "register"]
