"""One's own images: a folder per class, with boxes in a COCO json or none at all.

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

from pathlib import Path

from .. import coco
from ..holdout import TEST_FRACTION, VAL_FRACTION, split_off
from ..listing import class_folders, has_images, image_paths
from ..records import Problem, Record, Split
from .registry import Layout, register

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


def read(root: Path, name: str, boxes: Path | None = None) -> Split:
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
        message = f"{class_names[0]!r} is the only class folder; expected a folder that holds one per class"
        problems.append(Problem(str(root / folder if folder else root), message))
    box_problems: list[Problem] = []
    source, scope = boxes, root / (folder or "")
    if source is None:
        source, scope = coco.find_json(root, folder or name)
    if source is not None:
        coco.add_boxes(records, class_names, source, root, scope, box_problems)
    return Split("folder", name, root, class_names, records, problems, box_problems, source, "xywh")


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
            problems.append(
                Problem(str(folder / name), "this class folder has no image: remove it, or put some in")
            )
        prefix = (folder / name).relative_to(root).as_posix()
        records += [Record(f"{prefix}/{file}", label_of[name]) for file in files]
    return class_names, records


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
