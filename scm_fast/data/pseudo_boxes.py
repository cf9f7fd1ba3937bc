"""Pseudo-boxes: boxes that nobody drew, such as those `predict` found, in place of a split's own.

They are read from a COCO json, as `predict --format coco` writes it, or from a wsolevaluation folder with a
localization.txt (in it, or in its folder of the split). An image is meant by its path: as a file below the image
folder, or by a name that ends with its path below it, or that its path ends with.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from ..errors import InputError
from . import coco
from .checks import DataProblems, check_boxes, where
from .layouts.wsol import read_localization
from .records import Box, Problem, Record, Split

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Entry:
    """The boxes of one image in the file; classes: names of the boxes' categories, None where there is none."""

    boxes: tuple[Box, ...]
    classes: tuple[str | None, ...]
    size: tuple[int, int] | None = None  # (width, height)


def forget_boxes(split: Split) -> None:
    """Take a split's own boxes and masks away, and what is wrong with them."""
    for record in split.records:
        record.boxes, record.masks, record.ignore_mask = (), (), None
    split.box_source, split.box_problems = None, []


def give_pseudo_boxes(split: Split, root: str | os.PathLike[str], path: Path) -> None:
    """Give the images of a checked split, whose sizes are known, the boxes of `path`, and tell how many have some.

    Boxes of an image's own class are taken, where the file has such; else all that it has for the image. An empty
    box is none.
    """
    entries, split.box_columns = _read(path, split.name)
    name_of = match_names(
        entries, [record.id for record in split.records], split.image_root, path, split.name
    )
    other_size = 0
    for record in split.records:
        entry = entries.get(name_of.get(record.id, ""))
        if entry is None:
            continue
        if entry.size is not None and record.size is not None and entry.size != record.size:
            other_size += 1  # another picture, or the same one turned by its EXIF tag
            continue
        record.boxes = _boxes_for(record, entry, split.class_names)
    split.pseudo_boxes = str(path)
    split.box_source = path
    if faults := check_boxes(split):
        raise DataProblems(where(root, split.name), faults)
    count = sum(bool(record.boxes) for record in split.records)
    if not count:
        raise InputError(f"{path}: it has no box for any of the {len(name_of)} images that it names")
    sizes = f"; {other_size} are left out, their image has another size there" if other_size else ""
    logger.warning(
        "%s: %d of %d images have a pseudo-box of %s%s",
        *(where(root, split.name), count, len(split.records), path, sizes),
    )


def _boxes_for(record: Record, entry: _Entry, class_names: list[str]) -> tuple[Box, ...]:
    real = [
        (box, name)
        for box, name in zip(entry.boxes, entry.classes, strict=True)
        if box[0] < box[2] and box[1] < box[3]
    ]
    own = tuple(box for box, name in real if name == class_names[record.label])
    return own or tuple(box for box, _ in real)


def _read(path: Path, split: str) -> tuple[dict[str, _Entry], str]:
    """(file name -> entry, order of the columns)."""
    problems: list[Problem] = []
    if path.is_dir():
        files = [path / "localization.txt", path / split / "localization.txt"]
        found = next((file for file in files if file.is_file()), None)
        if found is None:
            raise InputError(f"{path}: no localization.txt with pseudo-boxes, here or in {split}/")
        entries, columns = _read_text(found, problems), "xyxy"
    elif not path.exists():
        raise InputError(f"{path}: no such file or folder (pseudo-boxes of split {split!r})")
    elif path.suffix == ".txt":
        entries, columns = _read_text(path, problems), "xyxy"
    else:
        entries, columns = _read_coco(path, problems), "xywh"
    if problems:
        raise DataProblems(str(path), problems)
    return entries, columns


def _read_text(file: Path, problems: list[Problem]) -> dict[str, _Entry]:
    boxes, masks = read_localization(file, problems)
    if masks:
        raise InputError(f"{file}: masks; expected boxes, lines of path,x0,y0,x1,y1")
    return {name: _Entry(tuple(found), (None,) * len(found)) for name, found in boxes.items()}


def _read_coco(file: Path, problems: list[Problem]) -> dict[str, _Entry]:
    content = coco.read_json(file)
    categories = {category.get("id"): category.get("name") for category in content.get("categories", [])}
    boxes = coco.read_annotations(content, categories, file, problems)
    info = content.get("info")
    folder = info.get("image_folder") if isinstance(info, dict) else None
    entries = {}
    for image in content["images"]:
        name, width, height = str(image.get("file_name")), image.get("width"), image.get("height")
        if isinstance(folder, str) and os.path.isfile(path := os.path.join(folder, name)):
            name = path  # `sub/1.jpg` of another folder is another image
        if name in entries:
            problems.append(Problem(str(file), f"duplicated image {name!r}"))
        found = boxes[image.get("id")]
        size = (width, height) if isinstance(width, int) and isinstance(height, int) else None
        entries[name] = _Entry(tuple(box for box, _ in found), tuple(category for _, category in found), size)
    return entries


def match_names(
    names: Iterable[str], ids: list[str], image_root: Path | None, source: Path, split: str
) -> dict[str, str]:
    """id of an image -> the name that means it. Names of other images, as of other splits, are left out."""
    names, known = list(names), set(ids)
    longer: dict[str, list[str]] = defaultdict(list)  # end of an id -> the ids that end so
    for record_id in ids:
        for end in _ends(record_id):
            longer[end].append(record_id)
    below: dict[str, str] = {}  # of files in the image folder: these are certain
    ending: dict[str, str] = {}
    for name in names:
        inside = _path_below(image_root, name)
        if inside is not None:
            if inside in known:
                below[inside] = name
            continue
        whole = [end for end in _ends(name) if end in known][:1]
        found = whole or longer.get(PurePath(name).as_posix(), [])
        if len(found) > 1:
            raise InputError(f"{source}: {name} may be {found[0]} or {found[1]}: its path is needed")
        for record_id in found:
            if record_id in ending:
                raise InputError(f"{source}: {ending[record_id]} and {name} may both be {record_id}")
            ending[record_id] = name
    if not below and not ending:
        has = f"it has {names[0]}" if names else "it has no image"
        raise InputError(f"{source}: none of its images is in split {split!r}: {has}, the split has {ids[0]}")
    return ending | below


def _path_below(folder: Path | None, name: str) -> str | None:
    """The path below `folder` of a file there; None for anything else."""
    if folder is None or not os.path.isfile(name):
        return None
    below = os.path.relpath(os.path.realpath(name), os.path.realpath(folder))
    return None if below.startswith("..") else PurePath(below).as_posix()


def _ends(path: str) -> Iterator[str]:
    """The path itself and what is left of it without its first folders, the longest first."""
    parts = PurePath(path).parts
    for begin in range(len(parts)):
        yield PurePath(*parts[begin:]).as_posix()
