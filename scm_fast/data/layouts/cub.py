"""CUB-200-2011 as its tarball unpacks.

    images.txt               1 001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg
    image_class_labels.txt   1 1                     (1-based)
    train_test_split.txt     1 0                     (1 = train)
    bounding_boxes.txt       1 60.0 27.0 325.0 304.0 (x y width height)
    classes.txt              1 001.Black_footed_Albatross
    images/

Splits: `test` and `trainval` are the tarball's own; `trainval` is divided into `train` and `val` by the
rule of holdout.py (one tenth of each class).
"""

from __future__ import annotations

from pathlib import Path

from ..holdout import VAL_FRACTION, split_off
from ..records import Box, Problem, Record, Split
from ..textfiles import read_mapping
from .registry import Layout, register

SPLITS = ("train", "val", "trainval", "test")


def find_root(root: Path) -> Path | None:
    """The folder with the text files: `root` or its CUB_200_2011; None when this is no CUB tarball."""
    for folder in (root, root / "CUB_200_2011"):
        if (folder / "images.txt").is_file() and (folder / "image_class_labels.txt").is_file():
            return folder
    return None


def read(root: Path, name: str) -> Split:
    problems: list[Problem] = []
    box_problems: list[Problem] = []
    files = read_mapping(root / "images.txt", problems, "id path", lambda v: v[0])
    labels = read_mapping(root / "image_class_labels.txt", problems, "id class", lambda v: int(v[0]))
    is_train = read_mapping(root / "train_test_split.txt", problems, "id is_train", lambda v: bool(int(v[0])))
    class_names = _class_names(root, problems, labels)

    box_file = root / "bounding_boxes.txt"
    needs_boxes = name in ("val", "test")
    boxes: dict[str, Box] = {}
    if box_file.is_file() or needs_boxes:
        boxes = read_mapping(box_file, box_problems, "id x y width height", _corners)

    seen: dict[str, str] = {}
    records = []
    for key, path in files.items():
        for mapping, source in ((labels, "image_class_labels.txt"), (is_train, "train_test_split.txt")):
            if key not in mapping and mapping:
                problems.append(Problem(str(root / source), f"image id {key} ({path}) is missing", path))
        if path in seen:
            problems.append(Problem(str(root / "images.txt"), f"{path} has two ids, {seen[path]} and {key}"))
            continue
        seen[path] = key
        if key not in labels or is_train.get(key) is not (name != "test"):
            continue
        box = boxes.get(key)
        records.append(Record(path, labels[key] - 1, boxes=(box,) if box else ()))
    for ids, source, found in (
        (set(labels), "image_class_labels.txt", problems),
        (set(boxes), "bounding_boxes.txt", box_problems),
    ):
        unknown = sorted(ids - set(files))
        found += [Problem(str(root / source), f"image id {key} is not in images.txt") for key in unknown]

    if name in ("train", "val"):
        train, val = split_off(records, VAL_FRACTION)
        records = train if name == "train" else val
    return Split(
        layout="cub",
        name=name,
        image_root=root / "images",
        class_names=class_names,
        records=records,
        problems=problems,
        box_problems=box_problems,
        box_source=box_file if box_file.is_file() else None,
        box_columns="xywh",
    )


def _corners(values: list[str]) -> Box:
    x, y, width, height = map(float, values)
    return x, y, x + width, y + height


def _class_names(root: Path, problems: list[Problem], labels: dict[str, int]) -> list[str]:
    path = root / "classes.txt"
    if not path.is_file():
        return [str(number) for number in range(1, max(labels.values(), default=0) + 1)]
    names = read_mapping(path, problems, "class name", lambda v: v[0])
    return [names.get(str(number), str(number)) for number in range(1, len(names) + 1)]


register(
    Layout(
        name="cub",
        summary="the tarball of CUB-200-2011 (images.txt, image_class_labels.txt, ...)",
        expects="images.txt and image_class_labels.txt, here or in CUB_200_2011/",
        find_root=find_root,
        splits=lambda root: SPLITS,
        read=read,
        order=10,
    )
)
