"""Opening a data set: its layout is found from the folder, and it is checked before it is used."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ..errors import InputError
from .checks import DataProblems, check_split, left_out_summary, where
from .dataset import LocalizationDataset
from .layouts import Layout, all_layouts
from .pseudo_boxes import forget_boxes, give_pseudo_boxes
from .records import Split

SOURCES = ("images", "boxes")  # places outside the data folder that a layout may take
logger = logging.getLogger(__name__)


def resolve_layout(root: str | os.PathLike[str], layout: str = "auto") -> tuple[Layout, Path]:
    """(layout, folder that holds it) of a data folder; `layout` forces one. Raises InputError."""
    path = Path(root)
    if layout == "auto":
        return _detect_layout(path)
    known = {candidate.name: candidate for candidate in all_layouts()}
    if layout not in known:
        raise InputError(f"layout {layout!r}: expected auto or one of {', '.join(known)}")
    forced = known[layout]
    if forced.on_disk and not path.is_dir():
        raise InputError(f"{root}: no such folder")
    found = forced.find_root(path)
    if found is None:
        inside = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) if path.is_dir() else ""
        raise InputError(
            f"{root}: this is no {layout} layout. Expected {forced.expects}; the folder has: {inside or 'nothing'}"
        )
    return forced, found


def _detect_layout(path: Path) -> tuple[Layout, Path]:
    for layout in all_layouts():
        if layout.on_disk == path.is_dir() and (found := layout.find_root(path)) is not None:
            return layout, found
    if not path.is_dir():
        words = " or ".join(f"the word {layout.name!r}" for layout in all_layouts() if not layout.on_disk)
        raise InputError(f"{path}: no such folder (give a data folder, or {words} for the built-in set)")
    raise InputError(
        f"{path}: no known layout here. Expected one of\n"
        + "\n".join(f"  {layout.name}: {layout.expects}" for layout in all_layouts() if layout.on_disk)
    )


def read_split(
    layout: Layout, root: Path, split: str, images: Path | None = None, boxes: Path | None = None
) -> Split:
    """The unchecked split of a folder whose layout is known."""
    check_sources(layout, images, boxes)
    splits = layout.splits(root)
    if split not in splits:
        raise InputError(f"{root}: there is no split {split!r}, only {', '.join(splits)}")
    given = dict(zip(SOURCES, (images, boxes), strict=True))
    return layout.read(root, split, **{name: given[name] for name in layout.takes})


def check_sources(layout: Layout, images: Path | None, boxes: Path | None) -> None:
    """Raise an InputError if the layout has no use for what was given, or it is not there."""
    for option, value in zip(SOURCES, (images, boxes), strict=True):
        if value is None:
            continue
        if option not in layout.takes:
            raise InputError(
                f"{option}={value}: the {layout.name} layout has no use for it, only {' and '.join(takers(option))}"
            )
        if not value.exists():
            raise InputError(f"{value}: no such file or folder ({option})")


def takers(option: str) -> list[str]:
    """Names of the layouts that take `images` or `boxes`."""
    return [layout.name for layout in all_layouts() if option in layout.takes]


def open_dataset(
    root: str | os.PathLike[str],
    split: str,
    layout: str = "auto",
    *,
    images: str | os.PathLike[str] | None = None,
    boxes: str | os.PathLike[str] | None = None,
    pseudo_boxes: str | os.PathLike[str] | None = None,
    skip_bad_images: bool = False,
    verify: str = "auto",
    told: set[str] | None = None,
) -> LocalizationDataset:
    """A checked data set.

    root: a folder in one of the layouts, or "synthetic" for the built-in set.
    split: train, val or test; also trainval where val is carved from the training images.
    layout: "auto" finds it from the folder; see `scm_fast.data.layouts`.
    images: where the images of wsolevaluation metadata are, when not beside it.
    boxes: the box source to use (ilsvrc: xml folder, csv or text folder; folder: a COCO json).
    pseudo_boxes: COCO json or wsolevaluation folder of boxes to take instead of the split's own; images that have
        none there count for classification alone.
    skip_bad_images: leave out images with problems instead of refusing the data set; `left_out` lists them.
    verify: how closely the images are looked at, see `check_split`.
    told: notes that are not to be logged again; receives those that are.

    Raises DataProblems (an InputError) that lists everything that is wrong. What was left out, and what became
    of the folders, is logged and stays in `notes`.
    """
    found, folder = resolve_layout(root, layout)
    contents = read_split(
        found, folder, split, Path(images) if images else None, Path(boxes) if boxes else None
    )
    if pseudo_boxes:
        forget_boxes(contents)
    problems = check_split(contents, verify)
    if problems:
        if not skip_bad_images or any(problem.record_id is None for problem in problems):
            raise DataProblems(where(root, split), problems)
        contents.leave_out({problem.record_id for problem in problems})
        logger.warning("%s: %s", where(root, split), left_out_summary(problems))
        if not contents.records:
            raise DataProblems(where(root, split), problems)
    if pseudo_boxes:
        give_pseudo_boxes(contents, root, Path(pseudo_boxes))
    told = set() if told is None else told
    for note in contents.notes:
        if note not in told:
            logger.warning("%s: %s", root, note)
            told.add(note)
    return LocalizationDataset(contents, str(root), problems)
