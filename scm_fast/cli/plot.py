"""Draw a run: its curves, and the maps of some images after every calibration block.

  scm-fast plot runs/birds
  scm-fast plot runs/birds --images 0 17 001.Albatross/photo_0001.jpg
  scm-fast plot runs/birds --images my_photo.jpg --model last --out pictures

RUN is the folder of a run: finished, stopped or still training. In RUN/plots, or OUT, you get

  loss.png          training loss and learning rate, step by step
  accuracy.png      classification and localisation on the validation split, epoch by epoch
  threshold.png     the box threshold that was best in each epoch
  calibration.png   lambda and beta of every calibration block (of SCM runs)
  maps.png          per image: the image; S^0 ... S^L above F^0 ... F^L, where 0 is the network's map and l the map
                    after block l; the box (red: found, green: true) above the map that it is cut from

S is the map of the image's class or, if that is unknown, of the predicted class. IMAGES are files, or images
of the run's test split by number or name; the default is four of them. If the model or the data are missing,
only the curves are drawn.

Needs matplotlib: pip install 'scm-fast[plots]'
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..extras import require_extra

if TYPE_CHECKING:
    from ..runs import Run

DEFAULT_IMAGES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="folder that train.py wrote")
    parser.add_argument(
        "--images", nargs="+", metavar="IMAGE", help="files, or numbers or names of the split"
    )
    parser.add_argument("--split", help="where numbers and names are looked up (the run's test split)")
    parser.add_argument("--data", help="the run's data folder, if it is elsewhere now")
    parser.add_argument("--model", help="last, best_top1_cls, ... (the best by the run's metric)")
    parser.add_argument("--out", type=Path, help="folder for the pictures (RUN/plots)")
    parser.add_argument("--device", help="e.g. cuda, cuda:1, cpu (default: cuda if there is one)")


def execute(args: argparse.Namespace) -> int:
    require_extra("matplotlib", "plots", "scm-fast plot")
    from ..runs import read_run
    from ..runs.curves import draw_curves

    run = read_run(args.run_folder)
    if args.data is not None:
        run = dataclasses.replace(run, config=dataclasses.replace(run.config, data=args.data))
    out = args.out or run.path / "plots"
    try:
        written = draw_curves(run, out)
        try:
            written.append(draw_maps(run, out, args))
        except InputError as error:
            if args.images or args.model:
                raise
            print(f"scm-fast plot: no maps: {error}", file=sys.stderr)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"--out {out}: not a folder ({error.strerror})") from error
    if not written:
        raise InputError(f"{run.path}: this run has logged nothing yet")
    for path in written:
        print(path)
    return 0


def draw_maps(run: Run, out: Path, args: argparse.Namespace) -> Path:
    from ..devices import use_device
    from ..models import load_model
    from ..runs.curves import save_figure
    from ..runs.maps import compute_maps, images_of_split, maps_figure

    model = load_model(run.path / args.model if args.model else run.kept_model)
    split = args.split or run.config.test_split
    subjects = images_of_split(run.config.source(), split, model, args.images or (), DEFAULT_IMAGES)
    results = compute_maps(model, subjects, use_device(args.device))
    names = model.config.class_names or [str(label) for label in range(model.config.num_classes)]
    return save_figure(maps_figure(results, names), out / "maps.png")
