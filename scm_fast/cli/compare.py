"""Put runs and evaluations side by side.

  scm-fast compare runs/birds-scm runs/birds-tscam
  scm-fast compare runs/scm-seed* runs/tscam-seed* --plot curves.png
  scm-fast compare runs/birds-scm runs/birds-tscam --maps maps.png --images 3 17 my_photo.jpg
  scm-fast compare runs/birds-scm results/gradcam
  scm-fast compare runs/* --json > runs.json

Each RUN is a folder that scm-fast train wrote, finished or not, or the --out of scm-fast evaluate. The tables
show

  - the figures of the test split, beside those of boxes that ignore the image;
  - the figures of the validation split in each run's best epoch;
  - what differs between the configurations.

Warnings say where figures should not be compared: other data, another protocol, an unfinished run.

GT-Known follows the protocol. MaxBoxAcc is GT-Known at the best single threshold on the test images, whatever
the protocol. unboxed, beside heldout, uses the threshold that images chose without boxes. s/image covers the
network, the maps and the boxes at all thresholds, without reading images: on a CPU the time of all cores, on
a GPU elapsed time.

Runs that differ only in their seed share a row: mean ± standard deviation. images/s is the training speed in
the median epoch.

--plot draws loss, classification, GT-Known and threshold over the epochs. --maps draws map and box of each
model for the same images (red: found, green: true). Both need matplotlib: pip install 'scm-fast[plots]'
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..errors import InputError
from ..extras import require_extra


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_folders", nargs="+", metavar="RUN", type=Path, help="folders of runs or evaluations"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="also draw the curves of the runs")
    parser.add_argument("--maps", type=Path, metavar="FILE.png", help="also draw their maps of some images")
    parser.add_argument(
        "--images",
        nargs="+",
        default=[],
        metavar="IMAGE",
        help="for --maps: files, or numbers or names of the first run's test split",
    )


def execute(args: argparse.Namespace) -> int:
    from ..runs import read_folder
    from ..runs.comparison import make_comparison
    from ..runs.comparison_output import comparison_data, comparison_text

    for option, path in (("--plot", args.plot), ("--maps", args.maps)):
        if path is not None:
            require_extra("matplotlib", "plots", option)
            if path.suffix.lower() != ".png":
                raise InputError(f"{option} {path}: expected a name that ends in .png")
    if args.images and args.maps is None:
        raise InputError("--images: goes with --maps FILE.png")
    folders = {path.resolve(): path for path in args.run_folders}  # what is given twice is there once
    found = [read_folder(path) for path in folders.values()]
    comparison = make_comparison(found)
    if args.plot is not None and not comparison.groups:
        raise InputError("--plot: draws the epochs of runs, and all of these folders are evaluations")
    print(json.dumps(comparison_data(comparison), indent=1) if args.json else comparison_text(comparison))
    if args.plot is not None:
        from ..runs.comparison_figure import comparison_figure
        from ..runs.curves import save_figure

        print(save_figure(comparison_figure(comparison.groups), args.plot), file=sys.stderr)
    if args.maps is not None:
        from ..devices import resolve_device
        from ..runs.comparison_maps import comparison_maps
        from ..runs.curves import save_figure

        print(
            save_figure(comparison_maps(found, args.images, resolve_device(None)), args.maps), file=sys.stderr
        )
    return 0
