"""Boxes of a COCO json, for images in class folders.

Where nobody names the json, it is looked for in this order:

1. <split>.json, <split>/_annotations.coco.json, annotations/instances_<split>.json or annotations/<split>.json,
   with any name of the split or of its folder;
2. annotations.json or _annotations.coco.json;
3. any other json in the folder, in annotations/ or in the split folder that has boxes of the split's images, unless
   its name has that of another split in it.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from ..errors import InputError
from .records import Box, Problem, Record, Split

FEW_UNKNOWN = 3  # images of a json that are not there, each named by itself
ANNOTATIONS = "annotations"  # folder of jsons
# What is read of a json: polygons are most of many files.
KEPT = frozenset(
    {
        *("images", "annotations", "categories", "info"),  # of the whole
        "image_folder",  # of info, which `predict` writes
        *("id", "file_name", "width", "height", "name"),  # of an image or a category
        *("image_id", "category_id", "bbox", "iscrowd"),  # of an annotation
    }
)


class BoxFile(NamedTuple):
    """A json, and the folder whose images it is about."""

    path: Path
    scope: Path


def find_json(
    root: Path, folder: str, split: Split, split_names: Mapping[str, Collection[str]], paths: Collection[str]
) -> BoxFile | None:
    """Find the json with the boxes of a split, as above; what is not used becomes a note of the split.

    folder: of the split's images, below the root; empty if there are no split folders.
    split_names: by which folders and files are known to be of a split.
    paths: of all images below the root.
    """
    names = dict.fromkeys(name for name in (folder, split.name, *split_names.get(split.name, ())) if name)
    for name in names:
        for path in (
            root / f"{name}.json",
            root / name / "_annotations.coco.json",
            root / ANNOTATIONS / f"instances_{name}.json",
            root / ANNOTATIONS / f"{name}.json",
        ):
            if path.is_file():
                return BoxFile(path, root / folder)
    for path in (root / "annotations.json", root / "_annotations.coco.json"):
        if path.is_file():
            return BoxFile(path, root)
    return _find_by_content(root, folder, split, split_names, paths)


def _find_by_content(
    root: Path, folder: str, split: Split, split_names: Mapping[str, Collection[str]], paths: Collection[str]
) -> BoxFile | None:
    own, others = set(split_names.get(split.name, ())) | {folder.lower()}, set[str]()
    for name, known in split_names.items():
        if name != split.name:
            others |= set(known) - own
    found = []
    for place in dict.fromkeys((root, root / ANNOTATIONS, root / folder)):
        for path in sorted(place.glob("*.json")) if place.is_dir() else ():
            words = set(re.findall("[a-z]+", path.stem.lower()))
            if path.name.startswith(".") or not path.is_file() or words & others:
                continue
            is_own = place == root / folder or bool(words & own)
            box_file = BoxFile(path, root / folder if is_own else root)
            unused = _reason_not_to_use(box_file, root, split, paths)
            if unused is None:
                found.append(box_file)
            elif split.name in ("val", "test"):  # the others need no boxes
                split.notes.append(f"{path} is not used: {unused}")
    if len(found) > 1:
        names = " and ".join(str(box_file.path) for box_file in found)
        message = (
            f"{names} have boxes of split {split.name!r}: name one as boxes (--boxes), or remove the others"
        )
        split.box_problems.append(Problem(str(root), message))
    return found[0] if found else None


def _reason_not_to_use(box_file: BoxFile, root: Path, split: Split, paths: Collection[str]) -> str | None:
    """Say why a json is not the one with a split's boxes; None if it is."""
    try:
        content = read_json(box_file.path)
    except InputError as error:
        return str(error).removeprefix(f"{box_file.path}: ")
    names = _FileNames(root, box_file.scope, paths)
    wanted = {record.id for record in split.records}
    with_boxes = {annotation.get("image_id") for annotation in content["annotations"]}
    known = False
    for image in content["images"]:
        meant = [] if leads_outside(str(image.get("file_name"))) else names.ids(str(image.get("file_name")))
        known = known or bool(meant)
        if image.get("id") in with_boxes and any(name in wanted for name in meant):
            return None
    if known or not content["images"]:
        return f"it has no box for the {len(wanted)} images of split {split.name}"
    return _not_there(
        [str(image.get("file_name")) for image in content["images"]], len(content["images"]), paths
    )


def add_boxes(
    records: list[Record],
    class_names: list[str],
    source: Path,
    root: Path,
    scope: Path,
    problems: list[Problem],
    paths: Collection[str],
) -> set[str]:
    """Give the records their boxes and sizes; return the ids of those that the json lists.

    scope: the folder whose images the json is about, `root` or a split folder in it. It may have more images
        than `records`: those of other splits. Names are paths below it or root, or bare and unique in it.
    paths: of all images below root.
    """
    content = read_json(source)
    categories = {category.get("id"): category.get("name") for category in content.get("categories", [])}
    by_class = any(name in class_names for name in categories.values())
    boxes = read_annotations(content, categories, source, problems)

    names = _FileNames(root, scope, paths)
    record_of = {record.id: record for record in records}
    image_ids = [image.get("id") for image in content["images"]]
    repeated_ids = {key for key, count in Counter(image_ids).items() if count > 1}
    seen: set[str] = set()
    unknown: list[str] = []
    listed: set[str] = set()
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
        listed.add(record.id)
        own = class_names[record.label]
        record.boxes = tuple(box for box, category in boxes[image_id] if not by_class or category == own)
        width, height = image.get("width"), image.get("height")
        if isinstance(width, int) and isinstance(height, int):
            record.size = (width, height)
    problems += _unknown_files(source, unknown, len(image_ids), [record.id for record in records])
    return listed


def leads_outside(file_name: str) -> bool:
    """Tell whether a name in a json is no path below the folder that the json is about."""
    path = PurePosixPath(file_name)
    return path.is_absolute() or PureWindowsPath(file_name).is_absolute() or ".." in path.parts


def _unknown_files(source: Path, names: list[str], count: int, there: Collection[str]) -> list[Problem]:
    """Images of a json that are not there: a line for each if they are few, and else one for all of them."""
    if len(names) <= FEW_UNKNOWN:
        return [Problem(str(source), f"{name} is not among the images") for name in names]
    return [Problem(str(source), _not_there(names, count, there))]


def _not_there(names: list[str], count: int, there: Iterable[str]) -> str:
    first = next(iter(there), None)
    return (
        f"{len(names)} of its {count} images are not there: the json has such as {names[0]}, "
        + (f"the folder has such as {first}" if first else "the folder has no image")
        + ". A file_name is a path below the folder, or a bare name that is unique in it"
    )


def read_json(source: Path) -> dict[str, Any]:
    """A COCO json whose images, annotations and categories are lists of objects; of those `KEPT` alone."""
    if not source.is_file():
        raise InputError(f"{source}: cannot read this COCO json (it is no file)")
    status = source.stat()
    return _read_json(source, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=1)  # every split reads it
def _read_json(source: Path, modified: int, size: int) -> dict[str, Any]:
    try:
        content = json.loads(source.read_bytes(), object_hook=_keep)
    except (OSError, ValueError) as error:
        raise InputError(f"{source}: cannot read this COCO json ({error})") from error
    except RecursionError:
        raise InputError(f"{source}: cannot read this COCO json (it is nested too deeply)") from None
    for name in ("images", "annotations", "categories"):
        entries = (
            content.get(name, [] if name == "categories" else None) if isinstance(content, dict) else None
        )
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InputError(f"{source}: a COCO json has a list of objects named {name!r}")
    return content


def _keep(entry: dict[str, Any]) -> dict[str, Any]:
    """An object of a json without what is not read, as soon as it is parsed: large files have room in memory so."""
    return {name: value for name, value in entry.items() if name in KEPT}


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
    """The images, as paths below root, that a file name of a json may mean."""

    def __init__(self, root: Path, scope: Path, paths: Iterable[str]) -> None:
        self._root = root
        self._prefix = "" if scope == root else f"{scope.relative_to(root).as_posix()}/"
        self._all = dict.fromkeys(path for path in paths if path.startswith(self._prefix))
        self._bare: dict[str, list[str]] = defaultdict(list)
        for path in self._all:
            self._bare[path.rsplit("/", 1)[-1]].append(path)

    def ids(self, file_name: str) -> list[str]:
        for path in (file_name, self._prefix + file_name):
            if path in self._all:
                return [path]
        if "/" in file_name and (self._root / file_name).is_file():
            return [file_name]  # outside the scope: a json for several splits
        return self._bare.get(file_name, [])
