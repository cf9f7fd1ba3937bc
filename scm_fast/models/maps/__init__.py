"""Maps of any classifier with a CLS token, no training needed: every module of this package registers some."""

import importlib
import pkgutil

from .registry import Map, Maps, get_map, look, map_names, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["Map", "Maps", "get_map", "look", "map_names", "register"]
