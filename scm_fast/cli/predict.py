"""Classes and boxes of your images, with a trained checkpoint or a classifier of timm.

  scm-fast predict photos/ --model deit_tiny_patch16_224 --out found --overlay
  scm-fast predict photos/ --checkpoint runs/birds/last --out found
  scm-fast predict a.jpg b.png --checkpoint scm_cub.pth --out found --format csv --overlay
  scm-fast predict flocks/ --checkpoint runs/birds/last --out found --max-boxes 5 --overlay

IMAGES are files or folders; a folder stands for all images below it. The checkpoint is a model that training
kept (last or best_gt_known in the run folder), or a published .pth file. --model takes a
classifier of timm as it is, with its ImageNet classes: no training, and the weights of timm's hub or of a file
(--pretrained). --map takes another map than the model's own (docs/methods.md). In the folder OUT you get

  json         predictions.json        size, boxes (x0 y0 x1 y1, pixels) and best classes of every image
  coco         predictions.coco.json   for annotation tools: bbox is x y width height; categories from 1
  csv          predictions.csv         one line per box
  yolo         yolo/                   data.yaml, images and labels: trains as it is
  voc          voc/                    Pascal VOC: Annotations, JPEGImages, ImageSets, labelmap.txt
  labelstudio  label_studio.json       tasks with predictions; label_studio.xml is the labelling interface

or several of them: --format coco,yolo. In coco, an image is named by its path below the image folder: the one that
is given, or the one that has all that are given. yolo and voc have the images in them, as further names of your
files where the disk has such and else as copies. Label Studio reads images from the image folder where
LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT is the folder around it.

--overlay adds a picture of every map and its boxes in OUT/overlays, --crops what each box surrounds in OUT/crops,
as NAME.jpg, or with --max-boxes as NAME_1.jpg, NAME_2.jpg. A box surrounds the part of the map above a
threshold: the checkpoint's (--threshold stored), or where it has none one that the images choose themselves (auto),
which needs no boxes. Chosen so, it depends on all images of the command: a photo may have another box among others.
A value overrules both, as 0.3 of the map's range or as between:0.3 of the way from the map's mean to Otsu's
threshold: lower it for larger boxes. Where boxes are known, scm-fast evaluate --save-threshold finds the best and
keeps it.

An image has one box, around the largest such part, unless --max-boxes K asks for more: then the other parts have
theirs too, K boxes at most, if their area is at least a tenth of the largest one's (and 64 pixels of the map, 224 x
224) and their score a quarter of its score. The score of a box in json is the share of the whole map that lies
within: it is high where the map has one clear object. In coco and csv, and on the overlays, it is multiplied by the
score of the class.

An image gets no box if its class is one of those that were named empty in training (--empty-classes), or with
--reject SHARE if it is less like the training images than all but that SHARE of the validation images: --reject
0.05 leaves out most photos that show something else, and about one in twenty that do not. Json then has the reason.

Small objects: --tiles 2x2 cuts every image into four, which the network sees one by one and twice as large, beside
the whole. --image-size 448 gives it more patches instead. Both take longer, and neither is sure to find more.

What is done is kept: after a Ctrl-C or on a full disk, the same command goes on where it was. The results are
written when all images are done; until then OUT/unfinished.jsonl holds them, a line per image.

Files that are no images are counted by suffix. An image that cannot be read is reported, and the others go on.
OUT/left_out.csv names all of them with the reason. Exit status: 0 all well, 1 some images could
not be read, 2 wrong arguments or not one image that could be read.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from .. import choices
from ..errors import InputError
from ..files import make_folder
from ..formats import FORMATS, Export, Finding, check_replaceable
from ..progress import tqdm
from .program import Parser, Stop, tiles

if TYPE_CHECKING:
    from ..journal import Journal
    from ..localizer import Localizer
    from ..threshold import Threshold

AUTO, STORED = "auto", "stored"  # in place of a threshold


def add_arguments(parser: Parser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGES", type=Path, help="image files or folders")
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--checkpoint", type=Path, help="folder or published .pth file")
    model.add_argument("--model", metavar="NAME", help="classifier of timm, such as deit_tiny_patch16_224")
    parser.add_argument("--pretrained", metavar="FILE", type=Path, help="weights of --model (timm's hub)")
    parser.add_argument("--out", required=True, type=Path, help="folder for the results")
    parser.add_argument(
        "--format",
        type=_formats,
        default="json",
        metavar="FORMATS",
        help=f"{', '.join(FORMATS)}, or several with commas between (default json)",
    )
    parser.add_argument("--overlay", action="store_true", help="also draw maps and boxes")
    parser.add_argument("--crops", action="store_true", help="also write what each box surrounds, as JPEG")
    parser.add_argument(
        "--overlay-side",
        type=int,
        default=1600,
        metavar="PIXELS",
        help="longer side of the overlays; larger images are scaled down (default 1600)",
    )
    parser.add_argument(
        "--threshold",
        help="such as 0.3 or between:0.3; stored: the checkpoint's; auto: chosen by the images "
        "(default: stored, or auto if there is none)",
    )
    parser.add_argument("--map", metavar="MAP", help="such as rollout, gradcam (default: the model's own)")
    parser.add_argument("--refine", action="store_true", help="apply SCM's diffusion to the maps")
    parser.add_argument("--max-boxes", type=int, default=1, metavar="K", help="of an image (default 1)")
    parser.add_argument("--image-size", type=int, metavar="PIXELS", help="(as the network was trained)")
    parser.add_argument("--tiles", type=tiles, default=(1, 1), metavar="RxC", help="such as 2x2 (1x1)")
    parser.add_argument("--reject", type=float, default=0.0, metavar="SHARE", help="such as 0.05 (0)")
    parser.add_argument("--mirror", action="store_true", help="average with the mirror image: two passes")
    parser.add_argument("--top-k", type=int, default=5, help="classes listed in json (default 5)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", help="e.g. cuda, cuda:1, cpu (default: cuda if there is one)")
    parser.add_choice(
        "--amp",
        choices.precisions,
        default="auto",
        help="autocast, as in training (default auto: bf16 on GPUs that have it)",
    )


def _formats(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in FORMATS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(FORMATS)}")
    return names


def execute(args: argparse.Namespace) -> int:
    from ..devices import use_device
    from ..found_images import find_images_for, write_left_out
    from ..journal import Journal
    from ..localizer import Localizer
    from ..lock import FolderLock
    from ..models import load_classifier, load_model
    from ..threshold import Choice, Threshold

    if args.overlay_side < 1:
        raise InputError(f"--overlay-side must be positive, got {args.overlay_side}")
    check_replaceable(args.out, args.format)
    found = find_images_for(args.images, args.out)
    files = found.files
    for note in found.notes:
        print(f"scm-fast predict: {note}", file=sys.stderr)
    if args.pretrained and not args.model:
        raise InputError("--pretrained: goes with --model")
    if args.model:
        model = load_classifier(args.model, args.pretrained, args.image_size)
    else:
        model = load_model(args.checkpoint, args.image_size)
    _check_stored(args, model.config.threshold)
    localizer = Localizer(
        model,
        use_device(args.device),
        args.batch_size,
        None if args.threshold in (AUTO, STORED) else args.threshold,
        args.top_k,
        args.mirror,
        args.max_boxes,
        args.map,
        args.refine,
        args.reject,
        args.tiles,
        args.amp,
    )
    images_choose = args.threshold == AUTO or localizer.choice.is_open
    make_folder(args.out, "--out")
    with (
        FolderLock(args.out, f"--out {args.out}", "predicting"),
        contextlib.closing(Journal(args.out, _what_counts(args))) as journal,
    ):
        journal.begin({str(file) for file in files})
        if journal.notes:
            notes = journal.notes
            localizer.choice = Choice(Threshold(**notes["threshold"]), notes["chosen_by"])
        else:
            if images_choose:
                localizer.choose_threshold(files)
            journal.start({"threshold": asdict(localizer.threshold), "chosen_by": localizer.choice.reason})
        if journal.done:
            print(f"{len(journal)} of {len(files)} images are done already", file=sys.stderr)
        unread = _predict(localizer, journal, files, args)
        if not journal.done:
            journal.remove()
            raise InputError(
                f"none of the {len(files)} images could be read; nothing was written to {args.out}"
            )
        with _keeping(journal, files, args.out):
            export = Export(args.out, journal, localizer.class_names, image_folder(args.images))
            written = ", ".join(str(FORMATS[name](export)) for name in args.format)
            list_of_others = write_left_out(args.out, [*unread, *found.left_out])
        boxes = f" with {sum(len(f.boxes) for f in journal)} boxes" if args.max_boxes > 1 else ""
        empty = sum(bool(f.empty) for f in journal)
        boxes += f", {empty} of them without a box," if empty else ""
        others = f", {len(unread)} could not be read" if unread else ""
        others += f", {len(found.left_out)} left out" if found.left_out else ""
        others += f" ({list_of_others})" if list_of_others else ""
        print(
            f"{len(journal)} images{boxes} in {written}{others}; "
            f"threshold {localizer.threshold} ({localizer.choice.reason})"
            + f"; --threshold {localizer.threshold} is this one for other images too"
            * images_choose
        )
        journal.remove()
    return 1 if unread else 0


def _check_stored(args: argparse.Namespace, stored: Threshold | None) -> None:
    """Raise an InputError if the checkpoint's threshold is asked for and there is none for this map."""
    if args.threshold == STORED and (stored is None or args.map or args.refine):
        why = "it is for the model's own map" if stored else f"{args.checkpoint or args.model} has none"
        raise InputError(
            f"--threshold {STORED}: {why}; scm-fast evaluate --save-threshold stores one, --threshold {AUTO} "
            "lets the images choose"
        )


def _what_counts(args: argparse.Namespace) -> dict[str, str]:
    """The images and options that a result depends on; of a checkpoint, also which weights it has."""
    free = ("images", "out", "format", "device", "batch_size")
    options = {name: _identity(value) for name, value in vars(args).items() if name not in free}
    return {"images": ", ".join(os.path.realpath(path) for path in args.images), **options}


def _identity(value: object) -> str:
    """A value as text; of a file, or the weights in a folder, also how large it is and from when."""
    from ..models.weights import WEIGHTS_FILE

    if not isinstance(value, Path):
        return str(value)
    file = value / WEIGHTS_FILE if value.is_dir() else value
    status = file.stat()
    return f"{file.resolve()} ({status.st_size} bytes, {status.st_mtime_ns})"


def _predict(
    localizer: Localizer, journal: Journal, files: list[Path], args: argparse.Namespace
) -> list[tuple[str, str]]:
    """Put the images that are left into the journal; gives those that could not be read, each with the reason."""
    from ..localizer import Failure
    from ..overlay import save_crops, save_overlay

    left = [
        (file, name)
        for file, name in zip(files, output_names(files, args.images), strict=True)
        if str(file) not in journal.done
    ]
    unread = []
    results = tqdm(
        localizer.stream(file for file, _ in left),
        initial=len(journal),
        total=len(files),
        unit=" images",
        disable=None,
    )
    with _keeping(journal, files, args.out):
        for (_, name), result in zip(left, results, strict=True):
            if isinstance(result, Failure):
                unread.append((result.name, result.error.removeprefix(f"{result.name}: ")))
                results.write(f"scm-fast predict: {result.error}", file=sys.stderr)
                continue
            if args.overlay:
                save_overlay(args.out / "overlays" / f"{name}.jpg", result, args.overlay_side)
            if args.crops:
                save_crops(args.out / "crops", name, result, numbered=args.max_boxes > 1)
            journal.add(Finding.of(name, result))
    return unread


@contextlib.contextmanager
def _keeping(journal: Journal, files: list[Path], out: Path) -> Iterator[None]:
    """Whatever stops the work within, say what is done and how to go on."""
    try:
        yield
    except (KeyboardInterrupt, OSError) as error:
        kept = f"{len(journal)} of {len(files)} images are done and kept, the same command goes on with the others"
        if isinstance(error, OSError):
            raise Stop(f"error: {error.filename or out}: {error.strerror}; {kept}", 2) from None
        raise Stop(f"stopped; {kept}", 128 + signal.SIGINT) from None


def image_folder(given: list[Path]) -> str:
    """Return the folder that is given, or the one that all files and folders that are given are in."""
    paths = [os.path.abspath(path) for path in given]
    return os.path.commonpath(path if os.path.isdir(path) else os.path.dirname(path) for path in paths)


def output_names(files: list[Path], given: list[Path]) -> list[str]:
    """A name without suffix for each file: its path below the folder that was given, or its own name.

    Names that would meet get a number: two folders may hold files of one name, and so may one folder
    with `a.jpg` and `a.png`.
    """
    folders = [folder for folder in given if folder.is_dir()]
    taken: set[str] = set()
    names = []
    for file in files:
        inside = next((folder for folder in folders if folder in file.parents), file.parent)
        stem = str(PurePath(file.relative_to(inside)).with_suffix(""))
        name, number = stem, 1
        while name in taken:
            number += 1
            name = f"{stem}-{number}"
        taken.add(name)
        names.append(name)
    return names
