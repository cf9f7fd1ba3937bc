"""Image files in folders."""

from __future__ import annotations

import os
from pathlib import Path

from .images import IMAGE_SUFFIXES


def class_folders(folder: Path) -> list[str]:
    """Names of the visible folders in `folder`, sorted: the order of the labels."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def image_names(folder: Path) -> list[str]:
    """Names of the image files in `folder`, sorted; hidden files are left out."""
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if not entry.name.startswith(".") and os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES
        )


def has_images(folder: Path, depth: int = 2) -> bool:
    """Whether an image is in `folder` or at most `depth` folders below (a wrong folder may be a disk)."""
    if image_names(folder):
        return True
    return depth > 0 and any(has_images(folder / name, depth - 1) for name in class_folders(folder))


def image_paths(folder: Path) -> list[str]:
    """Paths of the image files below `folder` at any depth, relative to it, with /, sorted."""
    paths = []
    for directory, subfolders, _ in os.walk(folder, followlinks=True):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        relative = Path(directory).relative_to(folder)
        paths += [(relative / name).as_posix() for name in image_names(Path(directory))]
    return sorted(paths)
