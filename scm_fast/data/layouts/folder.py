"""One's own images: a folder per class, with boxes in a COCO json or none at all.

    <class>/*.jpg     or     train/<class>/*.jpg, val/<class>/*.jpg, test/<class>/*.jpg

Labels count the sorted class names. Other names of split folders are known too (`SPLIT_NAMES`), in any case.
Splits, as far as the folders go:
- train, val and test folders: as they are;
- train and test: `val` is a tenth of each class of train, and `trainval` the whole;
- train and val: `test` is a fifth of each class of train;
- train alone: `val` is a tenth of each class, there is no `test`, and `trainval` is the whole;
- no split folders: a fifth of each class is `test`, a tenth of the rest `val`; `trainval` is `train` and
  `val`.
Carving follows holdout.py: the same on every machine. What became what is a note of the split.

coco.py says where a COCO json (x, y, width, height) is looked for; it may also be given as `boxes`. Its file names
are paths below the root, below the split folder, or bare names that are unique. If its categories are named like
the class folders, an image keeps the boxes of its own class; otherwise it keeps all. `iscrowd` regions are left
out. It may have boxes of some images alone: the others count for classification.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import coco
from ..holdout import TEST_FRACTION, VAL_FRACTION, split_off
from ..listing import (
    Listing,
    class_folders,
    folder_loops,
    has_images,
    holds_annotations,
    image_names,
    list_images,
)
from ..records import Problem, Record, Split
from .registry import Layout, register

SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
# What images without a box are good for: all of a split, or some of it.
WITHOUT_BOXES = {
    "val": "the threshold is chosen without boxes",
    "test": "classification alone can be measured",
}
SOME_WITHOUT = "the others count for classification alone"


@dataclass(frozen=True)
class _Folders:
    """The folders of a root that are splits; of: the folder of each split that has one, empty if there are none.

    unclear: folders that stand for one split.
    """

    of: dict[str, str]
    unclear: tuple[str, ...] = ()

    def notes(self) -> list[str]:
        """Describe what became what in a sentence, unless the names say it."""
        if not self.of:
            return ["no split folders: a fifth of each class is split test, a tenth of the rest is split val"]
        if self.of == {name: name for name in SPLIT_NAMES}:
            return []
        train = f"{self.of['train']}/"
        parts = [f"{folder}/ is split {split}" for split, folder in self.of.items() if split != "train"]
        if "val" not in self.of:
            parts.append(f"a tenth of each class of {train} is split val")
        elif "test" not in self.of:
            parts.append(f"there is no test folder, so a fifth of each class of {train} is split test")
        parts.append(f"{'the rest of ' if self.is_carved else ''}{train} is split train")
        return [", ".join(parts)]

    @property
    def is_carved(self) -> bool:
        """True if some split is a part of the training images."""
        return "val" not in self.of or "test" not in self.of


def _find_folders(root: Path) -> _Folders:
    """The split folders; none if train has no class folders, as when it is a class (of vehicles)."""
    found: dict[str, list[str]] = {split: [] for split in SPLIT_NAMES}
    for name in class_folders(root):
        for split, names in SPLIT_NAMES.items():
            if name.lower() in names:
                found[split].append(name)
    if not any(any(has_images(root / t / name) for name in class_folders(root / t)) for t in found["train"]):
        return _Folders({})
    unclear = next((names for names in found.values() if len(names) > 1), [])
    return _Folders({split: names[0] for split, names in found.items() if names}, tuple(unclear))


def find_root(root: Path) -> Path | None:
    """`root` when it has class folders with images; None otherwise."""
    if _find_folders(root).of:
        return root
    return root if any(has_images(root / name) for name in class_folders(root)) else None


def splits(root: Path) -> tuple[str, ...]:
    of = _find_folders(root).of
    if "val" in of:
        return tuple(SPLIT_NAMES)
    return ("train", "val", "trainval") if of and "test" not in of else ("train", "val", "trainval", "test")


def read(root: Path, name: str, boxes: Path | None = None) -> Split:
    folders = _find_folders(root)
    problems = _structure_problems(root, folders)
    folder = folders.of.get(name, folders.of.get("train", ""))  # that has the images of this split
    class_names = _class_names(root / folders.of.get("train", ""))
    parts = [
        f"{part}/{class_name}" if part else class_name
        for part in folders.of.values() or ("",)
        for class_name in _class_names(root / part)
    ]
    listing = list_images(root, parts)
    own = listing.below(folder)
    records = _carve(_read_classes(root, folder, own, class_names, problems), name, folders)
    if len(class_names) == 1 and class_folders(root / folder / class_names[0]):  # the folder above is given
        message = f"{class_names[0]!r} is the only class folder; expected a folder that holds one per class"
        problems.append(Problem(str(root / folder), message))
    split = Split(
        "folder", name, root, class_names, records, problems, box_columns="xywh", needs_every_box=False
    )
    split.notes = [*folders.notes(), *_beside(root, folders), *listing.notes()]
    _read_boxes(split, root, folder, listing.paths, boxes)
    return split


def _structure_problems(root: Path, folders: _Folders) -> list[Problem]:
    if folders.unclear:
        unclear = " and ".join(f"{name}/" for name in folders.unclear)
        return [
            Problem(str(root), f"{unclear} are names of one split: keep one of them, or rename the others")
        ]
    names = class_folders(root)
    known = {word for words in SPLIT_NAMES.values() for word in words}
    if not folders.of and names and all(name.lower() in known for name in names):
        there = ", ".join(f"{name}/" for name in names)
        return [Problem(str(root), f"it has {there} and no train/ with a folder per class")]
    return []


def _beside(root: Path, folders: _Folders) -> list[str]:
    """Describe what is in the root and belongs to no split or class."""
    notes = [f"passed over {name}, which is a link to a folder above it" for name in folder_loops(root)]
    if folders.of:
        strangers = [name for name in class_folders(root) if name not in folders.of.values()]
        with_images = [f"{name}/" for name in strangers if has_images(root / name)]
        if with_images:
            known = ", ".join(name for names in SPLIT_NAMES.values() for name in names)
            notes.append(f"left out {', '.join(with_images)}: not the name of a split ({known})")
    for part in folders.of.values() or ("",):
        if loose := image_names(root / part):
            where = f"{part}/" if part else "the folder"
            notes.append(f"left out {len(loose)} images that are in {where} itself and in no class folder")
    return notes


def _class_names(folder: Path) -> list[str]:
    """The class folders; one with annotations alone is none."""
    return [name for name in class_folders(folder) if not holds_annotations(folder / name)]


def _carve(records: list[Record], name: str, folders: _Folders) -> list[Record]:
    if not folders.is_carved or (name in folders.of and name != "train"):
        return records
    if "test" not in folders.of and (not folders.of or "val" in folders.of):
        records, test = split_off(records, TEST_FRACTION)
        if name == "test":
            return test
    if "val" in folders.of or name == "trainval":
        return records
    train, val = split_off(records, VAL_FRACTION)
    return train if name == "train" else val


def _read_classes(
    root: Path, folder: str, listing: Listing, class_names: list[str], problems: list[Problem]
) -> list[Record]:
    """The images of a folder's classes; only those of `class_names` may be there."""
    label_of = {name: label for label, name in enumerate(class_names)}
    prefix = f"{folder}/" if folder else ""
    paths: dict[str, list[str]] = {}
    for path in listing.paths:
        paths.setdefault(path.removeprefix(prefix).partition("/")[0], []).append(path)
    records = []
    for name in _class_names(root / folder):
        if name not in label_of:
            problems.append(
                Problem(str(root / folder / name), "this class is not among the folders of train")
            )
            continue
        files = paths.get(name, [])
        if not files:
            problems.append(
                Problem(
                    str(root / folder / name), "this class folder has no image: remove it, or put some in"
                )
            )
        records += [Record(file, label_of[name]) for file in files]
    return records


def _read_boxes(split: Split, root: Path, folder: str, paths: list[str], given: Path | None) -> None:
    """Give the records their boxes from the json that is given, or found."""
    found = coco.BoxFile(given, root / folder) if given else None
    found = found or coco.find_json(root, folder, split, SPLIT_NAMES, paths)
    if found is None:
        return
    listed = coco.add_boxes(
        split.records, split.class_names, found.path, root, found.scope, split.box_problems, paths
    )
    without = [record.id for record in split.records if not record.boxes]
    with_boxes = len(split.records) - len(without)
    if with_boxes or split.box_problems:
        split.box_source = found.path
    if split.name not in ("val", "test"):
        return
    if (
        with_boxes
    ):  # nobody has drawn the boxes of images that are not listed; of one that is, it was forgotten
        split.box_problems += [
            Problem(str(found.path), f"{name}: this image has no box", name)
            for name in without
            if name in listed
        ]
    if not split.box_problems and without:
        counts = f"{found.path} has boxes for {with_boxes} of the {len(split.records)} images of split {split.name}"
        split.notes.append(f"{counts}: {SOME_WITHOUT if with_boxes else WITHOUT_BOXES[split.name]}")


register(
    Layout(
        name="folder",
        summary="a folder per class, with boxes in a COCO json or none",
        expects="a folder per class with images in it, or train/<class>/ with images",
        find_root=find_root,
        splits=splits,
        read=read,
        takes=("boxes",),
        order=90,  # other layouts have folders of images too
    )
)
