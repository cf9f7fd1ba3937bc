"""Kinds of networks: every module of this package registers one."""

import importlib
import pkgutil

from .registry import (
    Architecture,
    Backbone,
    Features,
    all_architectures,
    architecture_of,
    features_on_grid,
    find_architecture,
    register,
    variants,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Architecture",
    "Backbone",
    "Features",
    "all_architectures",
    "architecture_of",
    "features_on_grid",
    "find_architecture",
    "register",
    "variants",
]
