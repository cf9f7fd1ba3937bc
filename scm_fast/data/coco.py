"""Boxes of a COCO json, for images in class folders."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path, PurePosixPath, PureWindowsPath

from ..errors import InputError
from .listing import image_paths
from .records import Box, Problem, Record

FEW_UNKNOWN = 3  # images of a json that are not there, each named by itself


def find_json(root: Path, split: str) -> tuple[Path | None, Path]:
    """(json of a split, the folder whose images it is about): its own json, else one for the whole root."""
    own = (
        root / f"{split}.json",
        root / split / "_annotations.coco.json",
        root / "annotations" / f"instances_{split}.json",
        root / "annotations" / f"{split}.json",
    )
    for path in own:
        if path.is_file():
            return path, root / split if (root / split).is_dir() else root
    for path in (root / "annotations.json", root / "_annotations.coco.json"):
        if path.is_file():
            return path, root
    return None, root


def add_boxes(
    records: list[Record],
    class_names: list[str],
    source: Path,
    root: Path,
    scope: Path,
    problems: list[Problem],
) -> None:
    """Gives the records their boxes and sizes.

    scope: the folder whose images the json is about, `root` or a split folder in it. It may have more images
        than `records`: those of other splits. Names are paths below it or root, or bare and unique in it.
    """
    content = read_json(source)
    categories = {category.get("id"): category.get("name") for category in content.get("categories", [])}
    by_class = any(name in class_names for name in categories.values())
    boxes = read_annotations(content, categories, source, problems)

    names = _FileNames(root, scope)
    record_of = {record.id: record for record in records}
    image_ids = [image.get("id") for image in content["images"]]
    repeated_ids = {key for key, count in Counter(image_ids).items() if count > 1}
    seen: set[str] = set()
    unknown: list[str] = []
    for image_id, image in zip(image_ids, content["images"], strict=True):
        file_name = str(image.get("file_name"))
        if file_name in seen or image_id in repeated_ids:
            problems.append(Problem(str(source), f"duplicated image {file_name!r} (id {image_id})"))
        seen.add(file_name)
        if leads_outside(file_name):
            message = f"file_name {file_name!r} leads outside the folder {root}"
            problems.append(Problem(str(source), message))
            continue
        found = names.ids(file_name)
        if not found:
            unknown.append(file_name)
        if len(found) > 1:
            message = f"{file_name} may be {found[0]} or {found[1]}: its path is needed"
            problems.append(Problem(str(source), message))
        record = record_of.get(found[0]) if len(found) == 1 else None
        if record is None:  # of another split
            continue
        own = class_names[record.label]
        record.boxes = tuple(box for box, category in boxes[image_id] if not by_class or category == own)
        width, height = image.get("width"), image.get("height")
        if isinstance(width, int) and isinstance(height, int):
            record.size = (width, height)
    problems += _unknown_files(source, unknown, len(image_ids), records)


def leads_outside(file_name: str) -> bool:
    """Whether a name in a json is no path below the folder that the json is about."""
    path = PurePosixPath(file_name)
    return path.is_absolute() or PureWindowsPath(file_name).is_absolute() or ".." in path.parts


def _unknown_files(source: Path, names: list[str], count: int, records: list[Record]) -> list[Problem]:
    """Images of a json that are not there: a line for each if they are few, and else one for all of them."""
    if len(names) <= FEW_UNKNOWN:
        return [Problem(str(source), f"{name} is not among the images") for name in names]
    there = f"the folder has such as {records[0].id}" if records else "the folder has no image"
    message = (
        f"{len(names)} of its {count} images are not there: the json has such as {names[0]}, {there}. "
        "A file_name is a path below the folder, or a bare name that is unique in it"
    )
    return [Problem(str(source), message)]


def read_json(source: Path) -> dict:
    """A COCO json whose images, annotations and categories are lists of objects."""
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{source}: cannot read this COCO json ({error})") from error
    for name in ("images", "annotations", "categories"):
        entries = (
            content.get(name, [] if name == "categories" else None) if isinstance(content, dict) else None
        )
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InputError(f"{source}: a COCO json has a list of objects named {name!r}")
    return content


def read_annotations(
    content: dict, categories: dict, source: Path, problems: list[Problem]
) -> dict[object, list[tuple[Box, str | None]]]:
    """image id -> its boxes, as corner pairs, with the names of their categories."""
    boxes: dict[object, list[tuple[Box, str | None]]] = defaultdict(list)
    known = {image.get("id") for image in content["images"]}
    for annotation in content["annotations"]:
        image_id, category_id = annotation.get("image_id"), annotation.get("category_id")
        fault = None
        try:
            x, y, width, height = map(float, annotation.get("bbox"))
        except (TypeError, ValueError):
            fault = f"bbox {annotation.get('bbox')} is not [x, y, width, height]"
        if image_id not in known:
            fault = f"image_id {image_id} is not in images"
        elif categories and category_id not in categories:
            fault = f"category_id {category_id} is not in categories"
        if fault:
            problems.append(Problem(str(source), f"annotation {annotation.get('id')}: {fault}"))
        elif not annotation.get("iscrowd"):
            boxes[image_id].append(((x, y, x + width, y + height), categories.get(category_id)))
    return boxes


class _FileNames:
    """Which images, as paths below root, a file name of a json may mean."""

    def __init__(self, root: Path, scope: Path) -> None:
        prefix = "" if scope == root else f"{scope.relative_to(root).as_posix()}/"
        paths = image_paths(scope)
        self._root, self._prefix = root, prefix
        self._all = {prefix + path for path in paths}
        self._bare: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            self._bare[path.rsplit("/", 1)[-1]].append(prefix + path)

    def ids(self, file_name: str) -> list[str]:
        for path in (file_name, self._prefix + file_name):
            if path in self._all:
                return [path]
        if "/" in file_name and (self._root / file_name).is_file():
            return [file_name]  # outside the scope: a json for several splits
        return self._bare.get(file_name, [])
