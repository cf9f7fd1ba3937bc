"""Opening a data set: its layout is found from the folder, and it is checked before it is used."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ..errors import InputError
from . import cub, folder, ilsvrc, synthetic, wsol
from .checks import DataProblems, check_split, left_out_summary, where
from .dataset import LocalizationDataset
from .records import Split

# What a folder of each layout must have.
EXPECTED = {
    "cub": "images.txt and image_class_labels.txt, here or in CUB_200_2011/",
    "wsol": "<split>/image_ids.txt for a split of train, val or test, here or in metadata/<NAME>/",
    "ilsvrc": "train/<wnid>/ such as train/n01440764/, or val/ with ILSVRC2012_val_00000001.JPEG ...",
    "folder": "a folder a class with images in it, or train/<class>/ with images",
}
LAYOUTS = ("cub", "wsol", "ilsvrc", "folder", "synthetic")
logger = logging.getLogger(__name__)


def detect_layout(root: str | os.PathLike[str]) -> tuple[str, Path]:
    """(layout, folder that holds it) of a data folder. Raises InputError when it looks like none."""
    path = Path(root)
    if not path.is_dir():
        raise InputError(
            f"{root}: no such folder (give a data folder, or the word 'synthetic' for the built-in set)"
        )
    for name, module in (("cub", cub), ("wsol", wsol), ("ilsvrc", ilsvrc), ("folder", folder)):
        found = module.find_root(path)
        if found is not None:
            return name, found
    raise InputError(
        f"{root}: no known layout here. Expected one of\n"
        + "\n".join(f"  {name}: {what}" for name, what in EXPECTED.items())
    )


def resolve_layout(root: str | os.PathLike[str], layout: str = "auto") -> tuple[str, Path]:
    """As detect_layout, or the folder of a layout that the caller forces."""
    if layout == "synthetic" or (layout == "auto" and str(root) == "synthetic" and not Path(root).is_dir()):
        return "synthetic", Path("synthetic")
    if layout == "auto":
        return detect_layout(root)
    if layout not in LAYOUTS:
        raise InputError(f"layout {layout!r}: expected auto or one of {', '.join(LAYOUTS)}")
    if not Path(root).is_dir():
        raise InputError(f"{root}: no such folder")
    found = {"cub": cub, "wsol": wsol, "ilsvrc": ilsvrc, "folder": folder}[layout].find_root(Path(root))
    if found is None:
        inside = ", ".join(sorted(path.name for path in Path(root).iterdir())[:8]) or "nothing"
        raise InputError(
            f"{root}: this is no {layout} layout. Expected {EXPECTED[layout]}; the folder has: {inside}"
        )
    return layout, found


def available_splits(layout: str, folder_root: Path) -> tuple[str, ...]:
    if layout == "cub":
        return cub.SPLITS
    if layout == "synthetic":
        return synthetic.SPLITS
    return {"wsol": wsol, "ilsvrc": ilsvrc, "folder": folder}[layout].splits(folder_root)


def read_split(
    layout: str, folder_root: Path, split: str, images: Path | None = None, boxes: Path | None = None
) -> Split:
    """The unchecked split of a folder whose layout is known."""
    check_sources(layout, images, boxes)
    splits = available_splits(layout, folder_root)
    if split not in splits:
        raise InputError(f"{folder_root}: there is no split {split!r}, only {', '.join(splits)}")
    if layout == "cub":
        return cub.read_split(folder_root, split)
    if layout == "wsol":
        return wsol.read_split(folder_root, split, images)
    if layout == "ilsvrc":
        return ilsvrc.read_split(folder_root, split, boxes)
    return folder.read_split(folder_root, split, boxes)


def check_sources(layout: str, images: Path | None, boxes: Path | None) -> None:
    """Raise an InputError if the layout has no use for what was given, or it is not there."""
    for option, value, users in (("images", images, ("wsol",)), ("boxes", boxes, ("ilsvrc", "folder"))):
        if value is not None and layout not in users:
            raise InputError(
                f"{option}={value}: the {layout} layout has no use for it, only {' and '.join(users)}"
            )
        if value is not None and not value.exists():
            raise InputError(f"{value}: no such file or folder ({option})")


def open_dataset(
    root: str | os.PathLike[str],
    split: str,
    layout: str = "auto",
    *,
    images: str | os.PathLike[str] | None = None,
    boxes: str | os.PathLike[str] | None = None,
    skip_bad_images: bool = False,
    verify: str = "auto",
) -> LocalizationDataset:
    """A checked data set.

    root: a folder in one of the layouts (cub, wsol, ilsvrc, folder), or "synthetic" for the built-in set.
    split: train, val or test; also trainval where val is carved from the training images.
    images: where the images of wsolevaluation metadata are, when not beside it.
    boxes: the box source to use (ilsvrc: xml folder, csv or text folder; folder: a COCO json).
    skip_bad_images: leave out images with problems instead of refusing the data set; `left_out` lists them.
    verify: how closely the images are looked at, see `check_split`.

    Raises DataProblems (an InputError) that lists everything that is wrong.
    """
    layout, folder_root = resolve_layout(root, layout)
    if layout == "synthetic":
        generated, pixels = synthetic.read_split(split)
        return LocalizationDataset(generated, "synthetic", pixels=pixels)
    contents = read_split(
        layout, folder_root, split, Path(images) if images else None, Path(boxes) if boxes else None
    )
    problems = check_split(contents, verify)
    if not skip_bad_images or any(problem.record_id is None for problem in problems):
        if problems:
            raise DataProblems(where(root, split), problems)
        return LocalizationDataset(contents, str(root))
    bad = {problem.record_id for problem in problems}
    contents.records = [record for record in contents.records if record.id not in bad]
    if problems:
        logger.warning("%s: %s", where(root, split), left_out_summary(problems))
    if not contents.records:
        raise DataProblems(where(root, split), problems)
    return LocalizationDataset(contents, str(root), problems)
