"""Look through a data folder before training on it: what is there, and everything that is wrong with it.

    scm-fast check-data /data/CUB_200_2011
    scm-fast check-data /data/my_images --boxes /data/my_boxes.json
    scm-fast check-data /data/metadata/ILSVRC --images /data/ILSVRC --split test --quick
    scm-fast check-data synthetic

The layout is found from the folder:
  cub      the tarball of CUB-200-2011 (images.txt, image_class_labels.txt, ...)
  wsol     wsolevaluation metadata (<split>/image_ids.txt, class_labels.txt, localization.txt, ...)
  ilsvrc   train/<wnid>/ and val/, with boxes in xml files, Kaggle's csv or wsolevaluation's text files
  folder   one folder a class, with boxes in a COCO json or none

Every image is decoded, so truncated files show; --quick reads the headers alone. Each problem is listed with
the file it is in. The exit status is 0 when there is none, 1 when there are some, 2 without a check.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from ..data import synthetic
from ..data.opening import LAYOUTS, available_splits, read_split, resolve_layout
from ..data.records import Problem, Split
from ..data.validation import check_split
from ..errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", metavar="DIR", help="data folder, or 'synthetic' for the built-in set")
    parser.add_argument(
        "--layout", choices=("auto", *LAYOUTS), default="auto", help="do not guess the layout"
    )
    parser.add_argument("--split", action="append", help="check this split only (may be repeated)")
    parser.add_argument("--images", type=Path, metavar="DIR", help="image folder of wsolevaluation metadata")
    parser.add_argument("--boxes", type=Path, metavar="PATH", help="box source: COCO json, csv or folder")
    parser.add_argument("--quick", action="store_true", help="read image headers instead of decoding")


def run(args: argparse.Namespace) -> int:
    layout, folder = resolve_layout(args.root, args.layout)
    # trainval is train and val together.
    names = args.split or [name for name in available_splits(layout, folder) if name != "trainval"]
    print(f"{args.root}: {layout} layout" + (f" in {folder}" if str(folder) != args.root else ""))
    problems: dict[Problem, None] = {}  # without those that several splits share, in order
    rows: list[tuple[str, ...]] = [
        ("split", "images", "classes", "boxes", "masks", "no box", "width", "height")
    ]
    sources: dict[str, Path | None] = {}
    for name in names:
        if layout == "synthetic":
            split, _ = synthetic.read_split(name)
        else:
            try:
                split = read_split(layout, folder, name, args.images, args.boxes)
            except InputError as error:
                if args.split:
                    raise
                problems[Problem(name, str(error))] = None
                continue
        problems.update(dict.fromkeys(check_split(split, "headers" if args.quick else "pixels")))
        rows.append(_describe(split))
        sources[name] = split.box_source
    _print_table(rows)
    for name, source in sources.items():
        print(f"boxes of {name}: {source or 'none'}")
    if not problems:
        print("no problem found")
        return 0
    print(f"{len(problems)} problem{'s' * (len(problems) != 1)}:")
    for problem in problems:
        print(f"  {problem}")
    return 1


def _describe(split: Split) -> tuple[str, ...]:
    records = split.records
    sizes = np.array([record.size for record in records if record.size]).reshape(-1, 2)
    with_images = len({record.label for record in records})
    classes = str(with_images)
    if with_images != len(split.class_names):
        classes += f" of {len(split.class_names)}"
    return (
        split.name,
        str(len(records)),
        classes,
        str(sum(len(record.boxes) for record in records)),
        str(sum(len(record.masks) for record in records)),
        str(sum(not (record.boxes or record.masks) for record in records)),
        _spread(sizes[:, 0]),
        _spread(sizes[:, 1]),
    )


def _spread(values: np.ndarray) -> str:
    """min / median / max in pixels."""
    if not len(values):
        return "-"
    low, middle, high = int(values.min()), int(np.median(values)), int(values.max())
    return str(low) if low == high else f"{low} / {middle} / {high}"


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
