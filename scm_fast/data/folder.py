"""One's own images: a folder a class, with boxes in a COCO json or none at all.

    <class>/*.jpg     or     train/<class>/*.jpg, val/<class>/*.jpg, test/<class>/*.jpg

Labels count the sorted class names. Splits, as far as the folders go:
- train, val and test folders: as they are;
- train and one of val or test: that one is `test`, and `val` is carved from train (`trainval` is the
  whole);
- no split folders: a fifth of each class is `test`, a tenth of the rest `val`; `trainval` is `train` and
  `val`.
Carving follows holdout.py: the same on every machine.

A COCO json (x, y, width, height) is found as annotations.json, <split>.json, <split>/_annotations.coco.json
or annotations/instances_<split>.json, or given as `boxes`. Its file names are paths below the root, below
the split folder, or bare names that are unique. If its categories are named like the class folders, an
image keeps the boxes of its own class; otherwise it keeps all. `iscrowd` regions are left out.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

from ..errors import InputError
from .holdout import TEST_FRACTION, VAL_FRACTION, split_off
from .listing import class_folders, has_images, image_paths
from .records import Box, Problem, Record, Split

SPLIT_FOLDERS = ("train", "val", "test")


def find_root(root: Path) -> Path | None:
    """`root` when it has class folders with images; None otherwise."""
    folders = [root / name for name in class_folders(root)]
    if (root / "train").is_dir():
        folders = [root / "train" / name for name in class_folders(root / "train")]
    return root if any(has_images(folder) for folder in folders) else None


def splits(root: Path) -> tuple[str, ...]:
    present = [name for name in SPLIT_FOLDERS if (root / name).is_dir()]
    if "train" not in present:
        return ("train", "val", "trainval", "test")
    if len(present) == 3:
        return SPLIT_FOLDERS
    return ("train", "val", "trainval", "test") if len(present) == 2 else ("train", "val", "trainval")


def read_split(root: Path, name: str, boxes: Path | None = None) -> Split:
    problems: list[Problem] = []
    present = [folder for folder in SPLIT_FOLDERS if (root / folder).is_dir()]
    if "train" not in present:
        class_names, records = _read_classes(root, root, None, problems)
        rest, test = split_off(records, TEST_FRACTION)
        records = test if name == "test" else _carve(rest, name)
        folder = None
    else:
        own_folders = len(present) == 3
        folder = name if own_folders else (present[-1] if name == "test" else "train")
        class_names = class_folders(root / "train")
        _, records = _read_classes(root, root / folder, class_names, problems)
        if not own_folders and name != "test":
            records = _carve(records, name)
    if len(class_names) == 1:
        message = f"{class_names[0]!r} is the only class folder; expected a folder that holds one a class"
        problems.append(Problem(str(root / folder if folder else root), message))
    source = boxes or _find_json(root, folder or name)
    if source is not None:
        _add_boxes(root, records, source, folder, class_names, problems)
    return Split("folder", name, root, class_names, records, problems, source, "xywh")


def _carve(records: list[Record], name: str) -> list[Record]:
    if name == "trainval":
        return records
    train, val = split_off(records, VAL_FRACTION)
    return train if name == "train" else val


def _read_classes(
    root: Path, folder: Path, class_names: list[str] | None, problems: list[Problem]
) -> tuple[list[str], list[Record]]:
    """(class names, records). With `class_names` given, only those may be in `folder`."""
    found = class_folders(folder)
    if class_names is None:
        class_names = found
    label_of = {name: label for label, name in enumerate(class_names)}
    records = []
    for name in found:
        if name not in label_of:
            problems.append(Problem(str(folder / name), "this class is not among the folders of train"))
            continue
        files = image_paths(folder / name)
        if not files:
            problems.append(Problem(str(folder / name), "this class folder has no image"))
        prefix = (folder / name).relative_to(root).as_posix()
        records += [Record(f"{prefix}/{file}", label_of[name]) for file in files]
    return class_names, records


def _find_json(root: Path, split: str) -> Path | None:
    candidates = (
        root / f"{split}.json",
        root / split / "_annotations.coco.json",
        root / "annotations" / f"instances_{split}.json",
        root / "annotations" / f"{split}.json",
        root / "annotations.json",
        root / "_annotations.coco.json",
    )
    return next((path for path in candidates if path.is_file()), None)


def _add_boxes(
    root: Path,
    records: list[Record],
    source: Path,
    folder: str | None,
    class_names: list[str],
    problems: list[Problem],
) -> None:
    """Gives the records their boxes and sizes from a COCO json."""
    coco = _read_json(source)
    categories = {category.get("id"): category.get("name") for category in coco.get("categories", [])}
    by_class = any(name in class_names for name in categories.values())

    boxes: dict[object, list[tuple[Box, str | None]]] = defaultdict(list)
    image_ids = [image.get("id") for image in coco["images"]]
    known = set(image_ids)
    for annotation in coco["annotations"]:
        name = f"annotation {annotation.get('id')}"
        try:
            x, y, width, height = map(float, annotation["bbox"])
        except (KeyError, TypeError, ValueError):
            problems.append(
                Problem(str(source), f"{name}: bbox {annotation.get('bbox')} is not [x, y, width, height]")
            )
            continue
        if annotation.get("image_id") not in known:
            problems.append(
                Problem(str(source), f"{name}: image_id {annotation.get('image_id')} is not in images")
            )
            continue
        if annotation.get("category_id") not in categories and categories:
            problems.append(
                Problem(str(source), f"{name}: category_id {annotation.get('category_id')} is unknown")
            )
            continue
        if not annotation.get("iscrowd"):
            category = categories.get(annotation.get("category_id"))
            boxes[annotation["image_id"]].append(((x, y, x + width, y + height), category))

    record_of = _index_by_name(records, folder)
    elsewhere = _Elsewhere(root, folder)
    repeated_ids = {key for key, count in Counter(image_ids).items() if count > 1}
    seen: set[str] = set()
    for image_id, image in zip(image_ids, coco["images"], strict=True):
        file_name = str(image.get("file_name"))
        if file_name in seen or image_id in repeated_ids:
            problems.append(Problem(str(source), f"duplicated image {file_name!r} (id {image_id})"))
        seen.add(file_name)
        record = record_of.get(file_name)
        if record is None:
            if file_name not in elsewhere:
                problems.append(Problem(str(source), f"{file_name} is not among the images"))
            continue
        own = class_names[record.label]
        record.boxes = tuple(box for box, category in boxes[image_id] if not by_class or category == own)
        if image.get("width") and image.get("height"):
            record.size = (int(image["width"]), int(image["height"]))


def _read_json(source: Path) -> dict:
    try:
        coco = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{source}: cannot read this COCO json ({error})") from error
    if not isinstance(coco, dict) or not isinstance(coco.get("images"), list) or "annotations" not in coco:
        raise InputError(f"{source}: a COCO json has the lists 'images' and 'annotations'")
    return coco


class _Elsewhere:
    """Whether a file name is an image of another split, since one json may cover several."""

    def __init__(self, root: Path, folder: str | None) -> None:
        self._root, self._folder = root, folder
        self._names: set[str] | None = None

    def __contains__(self, file_name: str) -> bool:
        if self._names is None:  # the whole tree is listed only when some name was not found
            paths = image_paths(self._root)
            self._names = {*paths, *(path.rsplit("/", 1)[-1] for path in paths)}
            self._names.update(path.split("/", 1)[-1] for path in paths if self._folder is not None)
        return file_name in self._names


def _index_by_name(records: list[Record], folder: str | None) -> dict[str, Record]:
    """Every name by which a json may call a record: its path, also below the split folder; bare if unique."""
    names: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        names[record.id.rsplit("/", 1)[-1]].append(record)
    index = {name: members[0] for name, members in names.items() if len(members) == 1}
    for record in records:
        index[record.id] = record
        if folder is not None:
            index[record.id.removeprefix(f"{folder}/")] = record
    return index
