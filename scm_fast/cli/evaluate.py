"""Measure how well a model classifies, and how well it shows where the object is.

  scm-fast evaluate --checkpoint runs/birds/best_gt_known --data CUB_200_2011
  scm-fast evaluate --checkpoint runs/birds/best_gt_known --data CUB_200_2011 --protocol maxbox --report
  scm-fast evaluate --model deit_tiny_patch16_224 --map gradcam --data CUB_200_2011 --out results/gradcam
  torchrun --nproc-per-node 4 -m scm_fast.cli evaluate --checkpoint runs/birds/last --data ILSVRC

In a checkout, `python evaluate.py` and `torchrun evaluate.py` do the same.

Boxes depend on the threshold that cuts a map. The protocol says who chooses it:

  heldout    (default) the boxes of the validation split; applied to the test split
  unboxed    the images of the validation split, without boxes; measured with the boxes of the test split
  fixed      you: --threshold T
  maxbox     the evaluated images themselves, the best one: MaxBoxAcc, MaxBoxAccV2
  published  the evaluated images, the best one per metric, as the SCM paper's code did

A threshold is a number for all images (rule global), or follows each map. --rule, below, lists the formulas;
heldout takes the rule that you name there.

Without boxes for the validation split, --val-boxes takes others: those that scm-fast predict --format coco
found, or a wsolevaluation folder. The evaluated split keeps its own boxes.

--map cuts another map than the model's own, such as rollout or gradcam, and --refine applies SCM's diffusion
to it (docs/methods.md).

--model evaluates an untrained timm classifier with its ImageNet classes, and weights from timm's hub or a
file (--pretrained). Its classes are not the data's, so each map is that of the predicted class, and there are
no classification figures.

--image-size tests with images of another size than those of the training: larger ones have more patches, and
boxes with finer edges, for more time. --tiles 2x2 cuts every image into four, for small objects.

All metrics come from one pass. Results are printed, and written to --out: metrics.json, predictions.csv,
predictions.coco.json and, with --report, report.html. --json prints what metrics.json has instead of a table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import choices
from ..errors import InputError
from ..files import make_folder
from ..threshold import BEST, get_rule, make_threshold, rule_names
from .program import Parser, tiles


def add_arguments(parser: Parser) -> None:
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument(
        "--checkpoint", help="model folder of a run, such as runs/birds/last, or a published .pth file"
    )
    model.add_argument("--model", metavar="NAME", help="classifier of timm, such as deit_tiny_patch16_224")
    parser.add_argument("--pretrained", metavar="FILE", help="weights of --model (timm's hub)")
    parser.add_argument("--image-size", type=int, help="image size in pixels (as in training)")
    parser.add_argument("--data", required=True, help="data folder, or the word synthetic")
    parser.add_argument(
        "--layout", default="auto", help="layout of the data folder (recognised from the folder)"
    )
    parser.add_argument("--images", help="image folder, for wsolevaluation metadata")
    parser.add_argument("--boxes", help="box source: xml folder, csv or COCO json")
    parser.add_argument("--split", default="test", help="split to evaluate (test)")
    parser.add_argument("--val-split", default="val", help="split that chooses the threshold (val)")
    parser.add_argument(
        "--val-boxes", help="COCO json or wsolevaluation folder of pseudo-boxes for heldout to choose on"
    )
    parser.add_choice("--protocol", choices.protocols, default="heldout")
    parser.add_argument(
        "--threshold", help="for --protocol fixed: a number in [0, 1), or such as between:0.3"
    )
    formulas = "; ".join(f"{name}: {get_rule(name).meaning}" for name in rule_names())
    parser.add_choice("--rule", choices.heldout_rules, default=BEST, help=f"of heldout ({BEST}). {formulas}")
    parser.add_argument(
        "--step", type=float, default=0.001, help="distance between the thresholds that are tried (0.001)"
    )
    parser.add_argument("--strategy", help="maps to combine, such as F4*S4 (F0*S0)")
    other = parser.add_argument("--map")
    parser.add_argument("--tiles", type=tiles, default=(1, 1), metavar="RxC", help="such as 2x2 (1x1)")
    parser.add_argument("--refine", action="store_true", help="apply SCM's diffusion to the maps")
    parser.add_argument("--mirror", action="store_true", help="average with the mirror image: two passes")
    parser.add_argument("--skip-bad-images", action="store_true", help="leave bad images out and list them")
    parser.add_argument("--batch-size", type=int, default=64, help="images per process (64)")
    parser.add_argument("--workers", type=int, help="loading processes (by the cores)")
    parser.add_argument("--device", default="auto", help="cpu, cuda or cuda:N (cuda if there is one)")
    parser.add_choice(
        "--amp",
        choices.precisions,
        default="auto",
        help="autocast, as in training (auto: bf16 on GPUs that have it)",
    )
    parser.add_argument("--out", type=Path, help="folder for results (evaluation/ beside the weights)")
    parser.add_argument("--report", action="store_true", help="also write report.html")
    parser.add_argument(
        "--save-threshold", action="store_true", help="write the threshold into the checkpoint's config.json"
    )
    parser.add_argument("--json", action="store_true", help="print metrics.json instead of the table")

    def explain() -> None:
        other.help = f"another map than the model's own: {', '.join(choices.maps())}"

    parser.before_help = explain


def execute(args: argparse.Namespace) -> int:
    from ..data import DataSource
    from ..devices import amp_dtype
    from ..distributed import is_first, on_first, processes
    from ..evaluation import EvaluationSettings, Predictor, Strategy, evaluate, summary, write_results
    from ..evaluation.extraction import kept_workers
    from ..evaluation.predictor import DEFAULT
    from ..evaluation.results import METRICS_FILE
    from ..models import load_classifier, load_model
    from ..models.checkpoint import check_threshold_can_be_saved, save_threshold

    settings = EvaluationSettings(
        args.protocol,
        None if args.threshold is None else make_threshold(args.threshold),
        args.rule,
        split=args.split,
        val_split=args.val_split,
        step=args.step,
        batch_size=args.batch_size,
        workers=args.workers,
        report=args.report,
    )
    if args.val_boxes and args.protocol != "heldout":
        raise InputError(
            f"--val-boxes: protocol {args.protocol} does not choose by boxes of {args.val_split}, heldout does"
        )
    if args.pretrained and not args.model:
        raise InputError("--pretrained: goes with --model")
    if args.image_size and args.save_threshold:
        raise InputError(
            "--save-threshold: the model is used with images of its own size, not of --image-size; "
            "save_model(load_model(checkpoint, image_size), folder) makes one of that size"
        )
    if args.model and args.save_threshold:
        raise InputError(
            "--save-threshold: goes with --checkpoint, there is no folder to write to with --model"
        )
    if args.model and not args.out:
        raise InputError("--out: name a folder for the results, there is none beside the weights of --model")
    strategy = Strategy.parse(args.strategy or DEFAULT)
    if args.save_threshold:
        check_threshold_can_be_saved(args.checkpoint)
        if strategy != Strategy() or args.map or args.refine or args.tiles != (1, 1):
            raise InputError(
                "--save-threshold: the model is used with its own map, not with --strategy, --map, --refine "
                "or --tiles"
            )
    with kept_workers(), processes(args.device) as device:  # the workers before CUDA has started
        if args.model:
            model = load_classifier(args.model, args.pretrained, args.image_size)
        else:
            model = load_model(args.checkpoint, args.image_size)
        strategy.check(model)
        predictor = Predictor(
            model.to(device),
            device,
            strategy,
            amp_dtype(args.amp, device),
            args.checkpoint or args.pretrained or args.model,
            args.mirror,
            args.map,
            args.refine,
            tiles=args.tiles,
            foreign_classes=args.model is not None,
        )
        source = DataSource(
            args.data, args.layout, args.images, args.boxes, args.skip_bad_images, args.val_boxes
        )
        out = args.out or _beside(Path(args.checkpoint))
        on_first(make_folder, out, "--out")

        done = evaluate(predictor, source, settings)
        if is_first():
            write_results(out, done)
            if args.save_threshold and done.result.threshold is not None:
                save_threshold(args.checkpoint, done.result.threshold)
            print((out / METRICS_FILE).read_text() if args.json else summary(done, out))
    return 0


def _beside(checkpoint: Path) -> Path:
    return (checkpoint if checkpoint.is_dir() else checkpoint.parent) / "evaluation"
