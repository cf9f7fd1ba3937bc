"""Check a data folder before you train on it: list its contents and every problem.

  scm-fast check-data /data/CUB_200_2011
  scm-fast check-data /data/my_images --boxes /data/my_boxes.json
  scm-fast check-data /data/metadata/ILSVRC --images /data/ILSVRC --split test --quick
  scm-fast check-data synthetic

Every image is decoded, which finds truncated files; --quick reads headers only. Notes say what became of the
folders and what was left out. Each problem is listed with its file. --json prints all of it for scripts.

Exit status: 0 no problems, 1 some problems, 2 nothing could be checked.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import choices
from ..errors import InputError
from .program import Parser

if TYPE_CHECKING:
    import numpy as np

    from ..data.records import Problem, Split


def add_arguments(parser: Parser) -> None:
    parser.add_argument("root", metavar="DIR", help="data folder, or 'synthetic' for the built-in set")
    parser.add_choice(
        "--layout", choices.layouts, default="auto", help="layout of the folder (recognised from the folder)"
    )
    parser.add_argument("--split", action="append", help="check this split only (may be repeated)")
    images = parser.add_argument("--images", type=Path, metavar="DIR")
    boxes = parser.add_argument("--boxes", type=Path, metavar="PATH")
    parser.add_argument("--quick", action="store_true", help="read image headers instead of decoding")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")

    def explain() -> None:
        from ..data.layouts import all_layouts

        images.help = f"image folder ({choices.takers('images')})"
        boxes.help = f"box source: COCO json, csv or folder ({choices.takers('boxes')})"
        width = max(len(layout.name) for layout in all_layouts())
        parser.epilog = "layouts:\n" + "\n".join(
            f"  {layout.name:{width}}  {layout.summary}" for layout in all_layouts()
        )

    parser.before_help = explain


def execute(args: argparse.Namespace) -> int:
    from ..data.checks import check_split
    from ..data.opening import check_sources, read_split, resolve_layout
    from ..data.records import Problem

    layout, folder = resolve_layout(args.root, args.layout)
    check_sources(layout, args.images, args.boxes)
    # trainval is train and val together.
    names = args.split or [name for name in layout.splits(folder) if name != "trainval"]
    problems: dict[Problem, None] = {}  # without those that several splits share, in order
    splits: list[Split] = []
    for name in names:
        try:
            split = read_split(layout, folder, name, args.images, args.boxes)
        except InputError as error:
            if args.split:
                raise
            problems[Problem(name, str(error))] = None
            continue
        problems.update(dict.fromkeys(check_split(split, "headers" if args.quick else "pixels")))
        splits.append(split)
    contents = {
        "root": args.root,
        "layout": layout.name,
        "folder": str(folder),
        "splits": [_summary(split) for split in splits],
        "notes": list(dict.fromkeys(note for split in splits for note in split.notes)),
        "problems": [str(problem) for problem in problems],
    }
    if args.json:
        print(json.dumps(contents, indent=1))
    else:
        _print(contents)
    return 1 if problems else 0


def _summary(split: Split) -> dict[str, Any]:
    import numpy as np

    records = split.records
    sizes = np.array([record.size for record in records if record.size]).reshape(-1, 2)
    return {
        "split": split.name,
        "images": len(records),
        "classes": len(split.class_names),
        "classes_with_images": len({record.label for record in records}),
        "boxes": sum(len(record.boxes) for record in records),
        "masks": sum(len(record.masks) for record in records),
        "images_without_box": sum(not (record.boxes or record.masks) for record in records),
        "width": _range(sizes[:, 0]),
        "height": _range(sizes[:, 1]),
        "box_source": str(split.box_source) if split.box_source else None,
    }


def _range(values: np.ndarray) -> list[int]:
    """[min, median, max] in pixels; empty without values."""
    import numpy as np

    return [int(values.min()), int(np.median(values)), int(values.max())] if len(values) else []


def _print(contents: dict[str, Any]) -> None:
    root, folder = contents["root"], contents["folder"]
    print(f"{root}: {contents['layout']} layout" + (f" in {folder}" if folder != root else ""))
    rows: list[tuple[str, ...]] = [
        ("split", "images", "classes", "boxes", "masks", "no box", "width", "height")
    ]
    for split in contents["splits"]:
        classes = str(split["classes_with_images"])
        if split["classes_with_images"] != split["classes"]:
            classes += f" of {split['classes']}"
        counts = (str(split[name]) for name in ("boxes", "masks", "images_without_box"))
        spreads = (_spread(split[side]) for side in ("width", "height"))
        rows.append((split["split"], str(split["images"]), classes, *counts, *spreads))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for split in contents["splits"]:
        print(f"boxes of {split['split']}: {split['box_source'] or 'none'}")
    for note in contents["notes"]:
        print(f"note: {note}")
    problems = contents["problems"]
    print(f"{len(problems)} problem{'s' * (len(problems) != 1)}:" if problems else "no problem found")
    for problem in problems:
        print(f"  {problem}")


def _spread(values: list[int]) -> str:
    """min / median / max, or the one size that all have."""
    if not values:
        return "-"
    return str(values[0]) if values[0] == values[-1] else " / ".join(map(str, values))
