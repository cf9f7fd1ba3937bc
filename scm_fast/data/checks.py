"""Checks of a split: every problem is collected and reported at once, by name."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..errors import InputError
from ..progress import tqdm
from .images import image_size, load_image
from .records import Problem, Record, Split

SLACK = 1.0  # pixels by which a box may leave the image: 1-based files and rounding
SHOWN = 40  # problems in an exception's message; `scm-fast check-data` shows all
HEADERS_UP_TO = 100_000  # images; larger splits are opened without reading each header (about 0.1 ms each)


class DataProblems(InputError):
    """A data set that cannot be used as it is. `problems` has all of them."""

    def __init__(self, where: str, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        lines = [f"  {problem}" for problem in problems[:SHOWN]]
        if len(problems) > SHOWN:
            lines.append(f"  ... and {len(problems) - SHOWN} more: scm-fast check-data lists them all")
        count = f"{len(problems)} problem{'s' * (len(problems) != 1)}"
        super().__init__("\n".join([f"{where}: {count}", *lines]))


def check_split(split: Split, verify: str = "auto") -> list[Problem]:
    """All problems of `split`, those of its layout included.

    verify: "names" looks for the files, "headers" also reads each image's size, "pixels" decodes it whole;
        "auto" is headers up to 100,000 images and names beyond.
    Sizes that were read are stored in the records.
    """
    if verify not in ("auto", "names", "headers", "pixels"):
        raise InputError(f"verify={verify!r}: expected auto, names, headers or pixels")
    if verify == "auto":
        verify = "headers" if len(split.records) <= HEADERS_UP_TO else "names"
    problems = [*split.problems, *split.box_problems]
    if not split.records and not problems:
        problems.append(Problem(str(split.image_root), f"split {split.name!r} has no image"))
    problems += _check_labels(split)
    if split.image_root is not None:
        missing = _check_files(split)
        problems += missing
        if verify != "names":
            absent = {problem.record_id for problem in missing}
            present = [record for record in split.records if record.id not in absent]
            problems += _check_images(split, present, decode=verify == "pixels")
        problems += _check_masks(split)
    problems += check_boxes(split)
    return problems


def _check_labels(split: Split) -> list[Problem]:
    classes = len(split.class_names)
    return [
        Problem(
            record.id,
            f"label {record.label} is out of range, there are {classes} classes (0 to {classes - 1})",
            record.id,
        )
        for record in split.records
        if not 0 <= record.label < classes
    ]


def _check_files(split: Split) -> list[Problem]:
    """Missing images, with one listing per folder: a query per file is slow on network file systems."""
    assert split.image_root is not None
    listings: dict[str, set[str]] = {}
    problems = []
    for record in split.records:
        folder, _, name = record.id.rpartition("/")
        if folder not in listings:
            try:
                listings[folder] = set(os.listdir(split.image_root / folder))
            except OSError:
                listings[folder] = set()
        if name not in listings[folder]:
            problems.append(Problem(str(split.image_root / record.id), "no such image file", record.id))
    return problems


def _check_images(split: Split, records: list[Record], *, decode: bool) -> list[Problem]:
    """Unreadable images and wrong sizes. Threads: decoding releases the interpreter lock."""
    root = split.image_root
    assert root is not None

    def look(record: Record) -> Problem | None:
        path = root / record.id
        try:
            if decode:
                size = load_image(path, upright=split.upright).size
            else:
                size = image_size(path, upright=split.upright)
        except InputError as error:
            message = str(error).removeprefix(f"{path}: ")
            return Problem(str(path), message, record.id)
        declared, record.size = record.size, size
        if declared is not None and declared != size:
            message = f"the annotations say {declared[0]} x {declared[1]}, the image is {size[0]} x {size[1]}"
            return Problem(str(path), message, record.id)
        return None

    action = "decoding" if decode else "reading sizes"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = tqdm(
            pool.map(look, records, chunksize=64),
            total=len(records),
            desc=f"{action} ({split.name})",
            unit="image",
            disable=None,
            leave=False,
        )
        return [problem for problem in found if problem is not None]


def _check_masks(split: Split) -> list[Problem]:
    assert split.image_root is not None
    problems = []
    for record in split.records:
        for mask in (*record.masks, *([record.ignore_mask] if record.ignore_mask else [])):
            path = split.image_root / mask
            if not path.is_file():
                problems.append(Problem(str(path), f"no such mask file (of {record.id})", record.id))
    return problems


def check_boxes(split: Split) -> list[Problem]:
    """Boxes that are no boxes or leave the image, files in the wrong column order, images without any."""
    source = str(split.box_source)
    bad: list[Problem] = []
    without: list[Problem] = []
    rows: list[tuple[tuple[float, ...], tuple[int, int] | None]] = []
    for record in split.records:
        for box in record.boxes:
            rows.append((box, record.size))
            fault = _box_fault(box, record.size)
            if fault:
                bad.append(Problem(source, f"{record.id}: box {_text(box)} {fault}", record.id))
        needs_box = (
            split.name in ("val", "test")
            and split.box_source
            and split.needs_every_box
            and not split.pseudo_boxes
        )
        if needs_box and not (record.boxes or record.masks):
            without.append(Problem(source, f"{record.id}: this image has no box", record.id))
    if (
        len(without) == len(split.records) > 1
    ):  # one cause, which the file's own problems tell if there are some
        message = f"it has no box for any of the {len(without)} images of split {split.name!r}"
        without = [] if split.box_problems else [Problem(source, message)]
    bad += without
    confusion = _column_confusion(split.box_columns, rows)
    if confusion and bad:
        examples = "; ".join(problem.message for problem in bad[:3])
        return [Problem(source, f"{confusion} ({len(bad)} of {len(rows)} boxes make no sense: {examples})")]
    return bad


def _box_fault(box: Sequence[float], size: tuple[int, int] | None) -> str | None:
    x0, y0, x1, y1 = box
    if not all(map(math.isfinite, box)):
        return "is not finite"
    if x1 <= x0 or y1 <= y0:
        return "is empty or turned round (expected x0 < x1 and y0 < y1)"
    if size is None:
        return None
    width, height = size
    if x0 < -SLACK or y0 < -SLACK or x1 > width + SLACK or y1 > height + SLACK:
        return f"is outside the image of {width} x {height}"
    return None


def _column_confusion(
    columns: str, rows: list[tuple[tuple[float, ...], tuple[int, int] | None]]
) -> str | None:
    """Return the sentence for rows that all make sense in the other column order; None if some do not."""
    other: Callable[[Sequence[float]], tuple[float, ...]]
    if columns == "xyxy":
        other = lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3])  # noqa: E731
        message = "the columns look like x, y, width, height; expected x0, y0, x1, y1"
    else:
        other = lambda b: (b[0], b[1], b[2] - b[0], b[3] - b[1])  # noqa: E731
        message = "the columns look like x0, y0, x1, y1; expected x, y, width, height"
    if rows and all(size is not None and _box_fault(other(box), size) is None for box, size in rows):
        return message
    return None


def _text(box: Sequence[float]) -> str:
    return "(" + ", ".join(f"{value:g}" for value in box) + ")"


def left_out_summary(problems: Sequence[Problem]) -> str:
    """Count and list of images that were left out, for logs and the screen."""
    by_image: dict[str | None, list[str]] = defaultdict(list)
    for problem in problems:
        by_image[problem.record_id].append(str(problem))
    lines = [f"left out {len(by_image)} image{'s' * (len(by_image) != 1)}:"]
    return "\n".join(lines + [f"  {name}: {'; '.join(messages)}" for name, messages in by_image.items()])


def where(root: str | os.PathLike[str], split: str) -> str:
    return f"{root} (split {split!r})"
