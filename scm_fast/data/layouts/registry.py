"""Layouts: what one is, and the table of those that exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ..records import Split


@dataclass(frozen=True)
class Layout:
    """A way to keep a data set, as one module of this package describes it.

    summary: what is on disk, for help texts.
    expects: what a folder must have, for the error when it has not.
    find_root: the folder in `root` (often itself) that holds the layout; None if this is not it.
    splits: names of the splits that are there, given what find_root gave.
    read: one of them, unchecked: `read(root, split)`, with a keyword for each of `takes`. Nothing is raised for a
        bad line or a missing image: it becomes a `Problem` of the split.
    takes: which places outside the folder may be given: "images" (the image folder), "boxes" (the box source).
    order: folders are shown to the layouts in this order, so the strictest come first.
    on_disk: False if there is no folder, and `root` is just a word.
    """

    name: str
    summary: str
    expects: str
    find_root: Callable[[Path], Path | None]
    splits: Callable[[Path], tuple[str, ...]]
    read: Callable[..., Split]
    takes: tuple[str, ...] = ()
    order: int = 50
    on_disk: bool = True


_layouts: dict[str, Layout] = {}


def register(layout: Layout) -> Layout:
    """Make a layout known to every function and command that takes data."""
    if layout.name in _layouts or layout.name == "auto":
        raise InputError(f"layout {layout.name!r}: there is one of this name")
    _layouts[layout.name] = layout
    return layout


def all_layouts() -> list[Layout]:
    """Return the layouts in the order in which folders are shown to them."""
    return sorted(_layouts.values(), key=lambda layout: layout.order)


def layout_names() -> list[str]:
    return [layout.name for layout in all_layouts()]
