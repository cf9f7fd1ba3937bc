"""YOLO and Pascal VOC: a folder each, with the images in it, that trains as it is.

Both find an image's boxes by the image's stem, in one flat folder. So images that share a stem, in one folder or in
several, are called differently here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from xml.sax.saxutils import escape

from ..errors import InputError
from .finding import Export, Finding, corner_and_size, unique_names

HEADER = "# Written by scm-fast predict"  # in a file of such a folder: by it they are known again
MARKERS = {"yolo": "data.yaml", "voc": "labelmap.txt"}
# What every reader of these formats takes for an image; others are written as JPEG.
SUFFIXES = frozenset([".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp"])
LONGEST_STEM = 200  # bytes: a name of a file may have 255
PARTIAL = ".partial"


def export_yolo(export: Export) -> Path:
    """Write `yolo/` as Ultralytics reads it: data.yaml, images/ and labels/.

    A line of a label is `class x_centre y_centre width height`, in fractions of the image.
    """
    names = "".join(f"  {label}: {_quoted(name)}\n" for label, name in enumerate(_plain_names(export)))
    about = "# val: the images of train, since there are no others with boxes here.\n"
    with _new_folder(export.folder / "yolo", f"{about}train: images\nval: images\nnames:\n{names}") as folder:
        (folder / "labels").mkdir()
        for finding, name in _with_images(export, folder / "images"):
            label = (folder / "labels" / name).with_suffix(".txt")
            label.write_text("".join(_yolo_line(finding, box) for box, _ in finding.boxes))
    return export.folder / "yolo"


def _yolo_line(finding: Finding, box: Sequence[float]) -> str:
    width, height = finding.size
    x, y, w, h = corner_and_size(box)
    values = (x + w / 2) / width, (y + h / 2) / height, w / width, h / height
    return f"{finding.label} " + " ".join(f"{value:.6f}" for value in values) + "\n"


def _quoted(name: str) -> str:
    """Return a name as text of YAML: `no` and `1` would be something else."""
    return "'" + name.replace("'", "''") + "'"


def export_voc(export: Export) -> Path:
    """Write `voc/` as Pascal VOC has it: Annotations/, JPEGImages/, ImageSets/Main/default.txt and labelmap.txt."""
    names = _plain_names(export)
    lines = "".join(f"{name}:::\n" for name in names)
    # Tools that know the format without this file take its own twenty classes for granted.
    text = f"# label:color_rgb:parts:actions\nbackground:::\n{lines}"
    with _new_folder(export.folder / "voc", text) as folder:
        annotations, sets = folder / "Annotations", folder / "ImageSets" / "Main"
        annotations.mkdir()
        sets.mkdir(parents=True)
        with (sets / "default.txt").open("w", encoding="utf-8") as listed:
            for finding, name in _with_images(export, folder / "JPEGImages"):
                file = (annotations / name).with_suffix(".xml")
                file.write_text(_voc_annotation(finding, name, names), encoding="utf-8")
                listed.write(f"{file.stem}\n")
    return export.folder / "voc"


def _voc_annotation(finding: Finding, file_name: str, names: Sequence[str]) -> str:
    """Return the XML of an image. Pixels count from 1, the last of a box is in it."""
    width, height = finding.size
    objects = ""
    for (x0, y0, x1, y1), _ in finding.boxes:
        xmin, ymin = min(round(x0) + 1, width), min(round(y0) + 1, height)
        xmax, ymax = max(round(x1), xmin), max(round(y1), ymin)
        objects += (
            f"  <object>\n    <name>{escape(names[finding.label])}</name>\n"
            "    <pose>Unspecified</pose>\n    <truncated>0</truncated>\n    <difficult>0</difficult>\n"
            f"    <bndbox><xmin>{xmin}</xmin><ymin>{ymin}</ymin><xmax>{xmax}</xmax><ymax>{ymax}</ymax></bndbox>\n"
            "  </object>\n"
        )
    return (
        f"<annotation>\n  <folder>JPEGImages</folder>\n  <filename>{escape(file_name)}</filename>\n"
        f"  <size><width>{width}</width><height>{height}</height><depth>3</depth></size>\n"
        f"  <segmented>0</segmented>\n{objects}</annotation>\n"
    )


def _plain_names(export: Export) -> list[str]:
    """Return the names of the classes without what would end a line or a field in these formats."""
    plain = [re.sub(r"[\x00-\x1f\x7f:\ud800-\udfff]+", " ", name) for name in export.class_names]
    return unique_names(plain)


def is_exported(folder: str | os.PathLike[str]) -> bool:
    """Return whether this is a folder of images that `predict` wrote, or had begun."""
    marker = MARKERS.get(os.path.basename(folder).removesuffix(PARTIAL))
    if marker is None:
        return False
    try:
        with open(os.path.join(folder, marker), encoding="utf-8", errors="replace") as file:
            return file.readline().startswith(HEADER)
    except OSError:
        return False


def check_replaceable(folder: Path, formats: Iterable[str]) -> None:
    """Raise an InputError if one of these formats would replace a folder of somebody else."""
    for path in (folder / name for name in formats if name in MARKERS):
        if path.exists() and not is_exported(path):
            raise InputError(
                f"{path}: scm-fast predict did not write this and does not replace it; move it away, or give "
                "--out another folder"
            )


@contextlib.contextmanager
def _new_folder(path: Path, text: str) -> Iterator[Path]:
    """Give a folder to write to, with `text` in its marker; when the block ends well, it takes the place of an
    earlier one."""
    check_replaceable(path.parent, [path.name])
    partial = path.with_name(path.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        (partial / MARKERS[path.name]).write_text(f"{HEADER}\n{text}", encoding="utf-8")
        yield partial
        if path.exists():
            shutil.rmtree(path)
        partial.replace(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _with_images(export: Export, folder: Path) -> Iterator[tuple[Finding, str]]:
    """Put every image into a folder; gives the findings, each with the name of its file there.

    It is a second name of the same file where the disk has such, and else a copy.
    """
    folder.mkdir()
    taken = set[str]()
    for finding in export.found:
        suffix = PurePath(finding.image).suffix.lower()
        stem = _free_stem(finding.output, taken)
        name = stem + (suffix if suffix in SUFFIXES else ".jpg")
        if suffix in SUFFIXES:
            _link_or_copy(os.path.realpath(finding.image), folder / name)
        else:
            from ..data.images import load_image

            load_image(finding.image).save(folder / name, "JPEG", quality=95)
        yield finding, name


def _link_or_copy(source: str, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # on another disk, or a file system without links
        shutil.copyfile(source, target)


def _free_stem(output: str, taken: set[str]) -> str:
    """Return a stem for an image's files that no other has, in small and capital letters alike."""
    wanted = re.sub(r"[^\w.()+-]", "_", output).encode()[-LONGEST_STEM:].decode(errors="ignore")
    stem, number = wanted, 1
    while stem.casefold() in taken:
        number += 1
        stem = f"{wanted}-{number}"
    taken.add(stem.casefold())
    return stem
