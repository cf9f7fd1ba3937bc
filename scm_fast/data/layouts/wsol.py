"""The metadata folders of wsolevaluation (CUB, ILSVRC, OpenImages, or one's own set in that form).

    <split>/image_ids.txt      path
    <split>/class_labels.txt   path,label           (0-based)
    <split>/localization.txt   path,x0,y0,x1,y1     one line per box; or with masks: path,mask,ignore
    <split>/image_sizes.txt    path,width,height

Splits are `train` (needs no localization.txt), `val` (held out, e.g. CUBV2) and `test`. Images and masks
are found below the metadata folder, its `images`, or wsolevaluation's `dataset/<NAME>` beside
`metadata/<NAME>`; another place is given as `images`. Without a val folder, one is carved from train by the
rule of holdout.py, and `trainval` is the whole of it.

The reference evaluator opens images without applying EXIF orientation, so its boxes are in stored pixels.
"""

from __future__ import annotations

from pathlib import Path

from ...errors import InputError
from ..holdout import VAL_FRACTION, split_off
from ..records import Box, Problem, Record, Split
from ..textfiles import read_mapping, read_rows
from .registry import Layout, register

FOLDERS = ("train", "val", "test")


def find_root(root: Path) -> Path | None:
    """The metadata folder: `root`, or its only `metadata/<NAME>`; None when there is none."""
    candidates = [root, root / "metadata", *sorted(root.glob("metadata/*"))]
    found = [c for c in candidates if any((c / split / "image_ids.txt").is_file() for split in FOLDERS)]
    if len(found) > 1:
        raise InputError(f"{root}: several metadata folders, give one of: {', '.join(map(str, found))}")
    return found[0] if found else None


def splits(root: Path) -> tuple[str, ...]:
    present = [split for split in FOLDERS if (root / split / "image_ids.txt").is_file()]
    if "train" in present and "val" not in present:
        return ("train", "val", "trainval", *(s for s in present if s == "test"))
    return tuple(present)


def read(root: Path, name: str, images: Path | None = None) -> Split:
    problems: list[Problem] = []
    box_problems: list[Problem] = []
    carved = name == "trainval" or (
        name in ("train", "val") and not (root / "val" / "image_ids.txt").is_file()
    )
    folder = root / ("train" if carved else name)
    needs_boxes = not carved and name != "train"

    ids = _read_ids(folder / "image_ids.txt", problems)
    labels = read_mapping(
        folder / "class_labels.txt", problems, "path,label", lambda v: int(v[0]), separator=","
    )
    sizes: dict = {}
    if (folder / "image_sizes.txt").is_file():
        sizes = read_mapping(
            folder / "image_sizes.txt",
            problems,
            "path,width,height",
            lambda v: (int(v[0]), int(v[1])),
            separator=",",
        )
    boxes: dict[str, list[Box]] = {}
    masks: dict[str, tuple[list[str], str | None]] = {}
    localization = folder / "localization.txt"
    if localization.is_file() or needs_boxes:
        boxes, masks = read_localization(localization, box_problems)

    known = set(ids)
    for source, mapping, found in (
        ("class_labels.txt", labels, problems),
        ("localization.txt", {**boxes, **masks}, box_problems),
    ):
        unknown = [key for key in mapping if key not in known]
        found += [Problem(str(folder / source), f"{key} is not in image_ids.txt") for key in unknown]
    records = []
    for key in ids:
        if key not in labels:
            problems.append(Problem(str(folder / "class_labels.txt"), f"{key} is missing", key))
            continue
        instance_masks, ignore = masks.get(key, ((), None))
        records.append(
            Record(key, labels[key], sizes.get(key), tuple(boxes.get(key, ())), tuple(instance_masks), ignore)
        )
    class_names = [str(label) for label in range(_class_count(root, labels))]
    if carved and name != "trainval":
        train, val = split_off(records, VAL_FRACTION)
        records = train if name == "train" else val
    return Split(
        layout="wsol",
        name=name,
        image_root=_image_root(root, ids, images),
        class_names=class_names,
        records=records,
        problems=problems,
        box_problems=box_problems,
        box_source=localization if localization.is_file() else None,
        upright=False,
    )


def read_localization(
    path: Path, problems: list[Problem]
) -> tuple[dict[str, list[Box]], dict[str, tuple[list[str], str | None]]]:
    """(boxes, masks) by image id. Box lines have five fields and mask lines three; a file has one kind."""
    boxes: dict[str, list[Box]] = {}
    masks: dict[str, tuple[list[str], str | None]] = {}
    if _fields_of_first_line(path) == 3:
        for _, (key, mask, ignore) in read_rows(path, problems, "path,mask,ignore", separator=","):
            instance_masks, known_ignore = masks.get(key, ([], None))
            masks[key] = ([*instance_masks, mask], known_ignore or ignore or None)
        return boxes, masks
    for number, (key, *values) in read_rows(path, problems, "path,x0,y0,x1,y1", separator=","):
        try:
            x0, y0, x1, y1 = map(float, values)
        except ValueError:
            problems.append(Problem(f"{path}:{number}", f"{values} are not four numbers"))
            continue
        boxes.setdefault(key, []).append((x0, y0, x1, y1))
    return boxes, masks


def _fields_of_first_line(path: Path) -> int:
    if not path.is_file():
        return 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        return len(next(lines, "").split(","))


def _read_ids(path: Path, problems: list[Problem]) -> list[str]:
    seen: dict[str, int] = {}
    for number, (key,) in read_rows(path, problems, "path", separator=","):
        if key in seen:
            problems.append(Problem(f"{path}:{number}", f"duplicated id {key!r} (also on line {seen[key]})"))
        else:
            seen[key] = number
    return list(seen)


def _class_count(root: Path, labels: dict) -> int:
    """Classes are those of train; the other splits must stay within them."""
    train_file = root / "train" / "class_labels.txt"
    if train_file.is_file():
        labels = read_mapping(train_file, [], "path,label", lambda v: int(v[0]), separator=",")
    return max(labels.values(), default=-1) + 1


def _image_root(root: Path, ids: list[str], images: Path | None) -> Path:
    if images is not None:
        return images
    dataset = root.parent.parent / "dataset" / root.name
    candidates = [root, root / "images", root.parent, root.parent / "images", dataset, dataset / "images"]
    for candidate in candidates:
        # A few tries, so that one missing file does not hide the folder.
        if any((candidate / key).is_file() for key in ids[:20]):
            return candidate
    tried = ", ".join(map(str, candidates))
    first = ids[0] if ids else "any image"
    raise InputError(f"{root}: {first} is in none of {tried}; give the image folder as images (--images)")


register(
    Layout(
        name="wsol",
        summary="wsolevaluation metadata (<split>/image_ids.txt, class_labels.txt, localization.txt, ...)",
        expects="<split>/image_ids.txt for a split of train, val or test, here or in metadata/<NAME>/",
        find_root=find_root,
        splits=splits,
        read=read,
        takes=("images",),
        order=20,
    )
)
