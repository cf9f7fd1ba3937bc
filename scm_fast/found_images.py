"""The image files that a command is given, by themselves or in folders, and what is left out of those."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .data.listing import list_images
from .errors import InputError
from .formats import is_exported, write_csv

LEFT_OUT_FILE = "left_out.csv"
# What `predict` puts into its output folder: files that mark it, and folders with pictures in it.
RESULT_FILES = (
    *("unfinished.jsonl", "predictions.json", "predictions.coco.json", "predictions.csv"),
    *("label_studio.json", "yolo/data.yaml", "voc/labelmap.txt"),
)
PICTURE_FOLDERS = ("overlays", "crops")


@dataclass(frozen=True)
class FoundImages:
    """files: each once. left_out: what is beside them in the folders, with the reason. notes: the same in words."""

    files: list[Path]
    left_out: list[tuple[str, str]]
    notes: list[str]


def find_images_for(given: Sequence[Path], out: Path) -> FoundImages:
    """List the images of files and folders, without the results of this or an earlier command.

    out: the folder of the results, which may be below one of those that are given.
    """
    if missing := [str(path) for path in given if not path.exists()]:
        raise InputError(f"no such image file or folder: {', '.join(missing)}")
    files: dict[str, Path] = {}  # by the real path
    left_out, notes = [], []
    for path in given:
        if not path.is_dir():
            files.setdefault(os.path.realpath(path), path)
            continue
        listing = list_images(path, skips=functools.partial(_is_result, root=path, out=out))
        for name in listing.paths:
            files.setdefault(os.path.realpath(path / name), path / name)
        left_out += [(str(path / name), reason) for name, reason in listing.reasons()]
        notes += [f"{path}: {note}" for note in listing.notes()]
        if not listing.paths:
            found = f" ({'; '.join(listing.notes())})" if listing.notes() else ""
            raise InputError(f"{path}: no image files in this folder{found}")
    return FoundImages(list(files.values()), left_out, notes)


def _is_result(folder: str, root: Path, out: Path) -> bool:
    """Tell whether a folder, by its real path, is the output folder below `root` or has pictures of some output."""
    if folder == os.path.realpath(out) != os.path.realpath(root):
        return True
    if is_exported(folder):
        return True
    parent, name = os.path.split(folder)
    return name in PICTURE_FOLDERS and any(
        os.path.exists(os.path.join(parent, file)) for file in RESULT_FILES
    )


def write_left_out(out: Path, left_out: Sequence[tuple[str, str]]) -> Path | None:
    """Write which files have no prediction and why, a line each; return the file, None if there are none."""
    path = out / LEFT_OUT_FILE
    if not left_out:
        path.unlink(missing_ok=True)
        return None
    return write_csv(path, ("file", "reason"), [{"file": f, "reason": r} for f, r in left_out])
