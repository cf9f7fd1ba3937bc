"""ILSVRC (ImageNet-1k): train/<wnid>/*.JPEG and val/, flat or in wnid folders, also inside Kaggle's
ILSVRC/Data/CLS-LOC.

Boxes and labels of val come from any of these, and `boxes` chooses one:
- xml:   Annotations/CLS-LOC/val/*.xml
- csv:   Kaggle's LOC_val_solution.csv
- text:  a wsolevaluation folder with localization.txt, class_labels.txt and image_sizes.txt

Labels count the sorted wnids of train; with val alone, those of val. Splits: `test` is the official
validation set, `trainval` the whole of train; `val` is held out from train by the rule of holdout.py (one
tenth and at most 10 images of a class, among the images that have boxes if Annotations/CLS-LOC/train or
LOC_train_solution.csv is there) and `train` is the rest.

Boxes were drawn on the stored pixels, so EXIF orientation is not applied.
"""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

from ...errors import InputError
from ...progress import tqdm
from ..holdout import VAL_FRACTION, by_hash, held_out_count
from ..listing import class_folders, image_names, image_paths
from ..records import Box, Problem, Record, Split
from ..textfiles import read_mapping
from .registry import Layout, register
from .wsol import read_localization

VAL_IMAGES_PER_CLASS = 10
WNID = re.compile(r"n\d{8}")
VAL_NAME = re.compile(r"ILSVRC2012_val_\d{8}\.")


class Annotation(NamedTuple):
    """The boxes and label of one image in a box source. `label` is a wnid or, in text files, already an int."""

    label: str | int | None
    size: tuple[int, int] | None
    boxes: tuple[Box, ...]


def find_root(root: Path) -> Path | None:
    """The folder that holds train/<wnid>, or val alone; None when this is no ILSVRC."""
    for folder in (root, root / "ILSVRC" / "Data" / "CLS-LOC", root / "Data" / "CLS-LOC"):
        if _wnid_folders(folder / "train") or _wnid_folders(folder / "val"):
            return folder
        if (folder / "val").is_dir() and any(map(VAL_NAME.match, image_names(folder / "val"))):
            return folder
    return None


def splits(root: Path) -> tuple[str, ...]:
    return ("train", "val", "trainval", "test") if _wnid_folders(root / "train") else ("test",)


def read(root: Path, name: str, boxes: Path | None = None) -> Split:
    wnids = _wnid_folders(root / "train")
    if name == "test":
        return _read_official_val(root, wnids, boxes)
    return _read_train(root, wnids, name)


def _wnid_folders(folder: Path) -> list[str]:
    return [name for name in class_folders(folder) if WNID.fullmatch(name)] if folder.is_dir() else []


# --- val ------------------------------------------------------------------------------------------------


def _read_official_val(root: Path, wnids: list[str], boxes: Path | None) -> Split:
    problems: list[Problem] = []
    source = boxes or _find_source(root, "val")
    if not (root / "val").is_dir():
        raise InputError(f"{root / 'val'}: no such folder, expected the images of the ILSVRC validation set")
    paths = image_paths(root / "val")
    if source is None:
        problems.append(
            Problem(
                str(root),
                "no boxes: expected Annotations/CLS-LOC/val/*.xml, LOC_val_solution.csv or localization.txt",
            )
        )
    annotations = _read_source(source, [Path(path).stem for path in paths], problems)
    if not wnids:  # val alone
        wnids = _wnid_folders(root / "val") or _label_names(annotations)
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    records = []
    for path in paths:
        record_id = f"val/{path}"
        annotation = annotations.get(Path(path).stem, Annotation(None, None, ()))
        folder = Path(path).parent.name
        named = folder if WNID.fullmatch(folder) else annotation.label
        if named is None:
            message = "no label: the file is in no wnid folder and the box source does not name it"
            problems.append(Problem(record_id, message, record_id))
            continue
        if isinstance(annotation.label, str) and named != annotation.label:
            message = f"is in the folder {named}, but {source} says {annotation.label}"
            problems.append(Problem(record_id, message, record_id))
            continue
        label = label_of.get(named) if isinstance(named, str) else named
        if label is None:
            problems.append(
                Problem(record_id, f"{named} is not among the {len(wnids)} classes of train", record_id)
            )
            continue
        records.append(Record(record_id, label, annotation.size, annotation.boxes))
    return Split("ilsvrc", "test", root, wnids, records, problems, box_source=source, upright=False)


def _label_names(annotations: dict[str, Annotation]) -> list[str]:
    """Class names of a flat val: the wnids of its annotations, or just numbers if they have numbers."""
    labels = {annotation.label for annotation in annotations.values() if annotation.label is not None}
    numbers = [label for label in labels if isinstance(label, int)]
    return [str(i) for i in range(max(numbers) + 1)] if numbers else sorted(map(str, labels))


def _find_source(root: Path, part: str) -> Path | None:
    """The box source of `part` (train or val) in its usual places around the image folder."""
    for base in (root, root.parent, root.parent.parent, root.parent.parent.parent):
        for candidate in (
            base / "Annotations" / "CLS-LOC" / part,
            base / "Annotations" / part,
            base / f"LOC_{part}_solution.csv",
        ):
            if candidate.exists():
                return candidate
        if part == "val":
            for folder in (base / "metadata" / "ILSVRC" / "test", base / "val", base):
                if (folder / "localization.txt").is_file():
                    return folder
    return None


def _read_source(source: Path | None, stems: list[str], problems: list[Problem]) -> dict[str, Annotation]:
    """stem of the image file -> annotation."""
    if source is None:
        return {}
    if source.is_file() and source.suffix == ".csv":
        return read_solution_csv(source, problems)
    if source.is_file() and source.name == "localization.txt":
        source = source.parent
    if (source / "localization.txt").is_file():
        return _read_text(source, problems)
    if source.is_dir():
        nested = source / "val" if (source / "val").is_dir() else source
        found = {}
        for stem in tqdm(stems, desc="reading boxes", unit="file", disable=None, leave=False):
            path = nested / f"{stem}.xml"
            if path.is_file():
                found[stem] = read_xml(path, problems)
        if not found and stems:
            problems.append(Problem(str(source), f"no annotation here (expected e.g. {stems[0]}.xml)"))
        return found
    raise InputError(
        f"{source}: expected a folder of xml files, a LOC_*_solution.csv, or a folder with localization.txt"
    )


def read_solution_csv(path: Path, problems: list[Problem]) -> dict[str, Annotation]:
    """Kaggle's csv: ImageId,PredictionString with groups of `wnid x0 y0 x1 y1`."""
    found: dict[str, Annotation] = {}
    with path.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            stem, text = row.get("ImageId"), row.get("PredictionString")
            fields = (text or "").split()
            try:
                if stem is None or not fields or len(fields) % 5:
                    raise ValueError
                groups = [fields[i : i + 5] for i in range(0, len(fields), 5)]
                boxes = tuple((float(a), float(b), float(c), float(d)) for _, a, b, c, d in groups)
            except ValueError:
                message = f"{stem}: {text!r} is not of the form 'wnid x0 y0 x1 y1 ...'"
                problems.append(Problem(str(path), message))
                continue
            if stem in found:
                problems.append(Problem(str(path), f"duplicated id {stem!r}"))
            found[stem] = Annotation(groups[0][0], None, boxes)
    return found


def read_xml(path: Path, problems: list[Problem]) -> Annotation:
    """One PASCAL-style annotation file."""
    try:
        tree = ElementTree.parse(path)
        size = (int(tree.findtext("size/width", "")), int(tree.findtext("size/height", "")))
        boxes = tuple(
            (_edge(item, "xmin"), _edge(item, "ymin"), _edge(item, "xmax"), _edge(item, "ymax"))
            for item in tree.iter("object")
        )
    except (ElementTree.ParseError, ValueError) as error:
        problems.append(Problem(str(path), f"is no PASCAL annotation ({error})"))
        return Annotation(None, None, ())
    return Annotation(tree.findtext("object/name"), size, boxes)


def _edge(item: ElementTree.Element, name: str) -> float:
    return float(item.findtext(f"bndbox/{name}", ""))


def _read_text(folder: Path, problems: list[Problem]) -> dict[str, Annotation]:
    boxes, _ = read_localization(folder / "localization.txt", problems)
    labels: dict = {}
    sizes: dict = {}
    if (folder / "class_labels.txt").is_file():
        labels = read_mapping(
            folder / "class_labels.txt", problems, "path,label", lambda v: int(v[0]), separator=","
        )
    if (folder / "image_sizes.txt").is_file():
        sizes = read_mapping(
            folder / "image_sizes.txt",
            problems,
            "path,width,height",
            lambda v: (int(v[0]), int(v[1])),
            separator=",",
        )
    return {
        Path(key).stem: Annotation(labels.get(key), sizes.get(key), tuple(boxes.get(key, ())))
        for key in {**labels, **boxes}
    }


# --- train ----------------------------------------------------------------------------------------------


def _read_train(root: Path, wnids: list[str], name: str) -> Split:
    problems: list[Problem] = []
    records = []
    for label, wnid in enumerate(wnids):
        files = image_names(root / "train" / wnid)
        if not files:
            problems.append(
                Problem(
                    str(root / "train" / wnid), "this class folder has no image: remove it, or put some in"
                )
            )
        records += [Record(f"train/{wnid}/{file}", label) for file in files]
    split = Split("ilsvrc", name, root, wnids, records, problems, upright=False)
    if name == "trainval":
        return split
    source = _find_source(root, "train")
    annotated = _annotated_stems(source, wnids, problems)
    held_out: set[str] = set()
    for members in by_hash(records).values():
        with_boxes = [record for record in members if Path(record.id).stem in annotated]
        count = min(held_out_count(len(members), VAL_FRACTION), VAL_IMAGES_PER_CLASS)
        held_out.update(record.id for record in (with_boxes or members)[:count])
    if name == "train":
        split.records = [record for record in records if record.id not in held_out]
        return split
    split.records = [_with_boxes(r, annotated, problems) for r in records if r.id in held_out]
    split.box_source = source
    return split


def _annotated_stems(
    source: Path | None, wnids: list[str], problems: list[Problem]
) -> dict[str, Annotation | Path]:
    """stem -> its annotation, or the xml file that holds it (read only for the images that are chosen)."""
    if source is None:
        return {}
    if source.suffix == ".csv":
        return dict(read_solution_csv(source, problems))
    folders = [source / wnid for wnid in wnids if (source / wnid).is_dir()]
    return {path.stem: path for folder in folders for path in folder.glob("*.xml")}


def _with_boxes(record: Record, annotated: dict[str, Annotation | Path], problems: list[Problem]) -> Record:
    annotation = annotated.get(Path(record.id).stem)
    if isinstance(annotation, Path):
        annotation = read_xml(annotation, problems)
    if annotation is not None:
        record.size, record.boxes = annotation.size, annotation.boxes
    return record


register(
    Layout(
        name="ilsvrc",
        summary="train/<wnid>/ and val/, with boxes in xml files, Kaggle's csv or wsolevaluation's text files",
        expects="train/<wnid>/ such as train/n01440764/, or val/ with ILSVRC2012_val_00000001.JPEG ...",
        find_root=find_root,
        splits=splits,
        read=read,
        takes=("boxes",),
        order=30,
    )
)
