"""Evaluate a localisation model: how well it classifies, and how well it tells where the object is.

  scm-fast evaluate --checkpoint runs/birds/best_gt_known --data CUB_200_2011
  scm-fast evaluate --checkpoint runs/birds/best_gt_known --data CUB_200_2011 --protocol maxbox --report
  torchrun --nproc-per-node 4 -m scm_fast.cli evaluate --checkpoint runs/birds/last --data ILSVRC

In a checkout, `python evaluate.py` is the same, and `torchrun evaluate.py`.

Boxes depend on the threshold that cuts an activation map, and figures on how it was chosen:

  heldout    (default) chosen on the validation split, applied to the test split
  fixed      --threshold T
  maxbox     the best one for the test split: MaxBoxAcc, MaxBoxAccV2
  published  as the SCM paper's code did: each metric its own best on the test split

All metrics come from one pass. Results are printed, and written to --out: metrics.json, predictions.csv,
predictions.coco.json and, with --report, report.html. --json prints what metrics.json has instead of a table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ..data import build_evaluation_loader, open_dataset
from ..distributed import end_processes, is_first, on_first, start_processes
from ..errors import InputError
from ..evaluation import Evaluator, output, protocols
from ..evaluation.report import write_report
from ..evaluation.runner import Predictor, Run, evaluate_split, evaluation_preprocessing
from ..evaluation.strategy import DEFAULT, Strategy
from ..files import make_folder
from ..models import load_model

AMP = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        required=True,
        help="model folder of a run, such as runs/birds/last, or a published .pth file",
    )
    parser.add_argument("--data", required=True, help="data folder, or the word synthetic")
    parser.add_argument("--layout", default="auto", help="of the data folder, if it is not recognised")
    parser.add_argument("--images", help="where the images of wsolevaluation metadata are")
    parser.add_argument("--boxes", help="box source: xml folder, csv or COCO json")
    parser.add_argument("--split", default="test", help="split to evaluate (test)")
    parser.add_argument("--val-split", default="val", help="split on which heldout chooses (val)")
    parser.add_argument("--protocol", default="heldout", choices=list(protocols.PROTOCOLS))
    parser.add_argument("--threshold", type=float, help="in [0, 1), for --protocol fixed")
    parser.add_argument("--step", type=float, default=0.001, help="of the thresholds that are tried (0.001)")
    parser.add_argument("--strategy", default=DEFAULT, help=f"maps to combine, such as F4*S4 ({DEFAULT})")
    parser.add_argument("--skip-bad-images", action="store_true", help="leave out and list, do not stop")
    parser.add_argument("--batch-size", type=int, default=64, help="images a process (64)")
    parser.add_argument("--workers", type=int, help="loading processes (by the cores)")
    parser.add_argument("--device", default="auto", help="cpu, cuda or cuda:N (cuda if there is one)")
    parser.add_argument("--amp", default="none", choices=list(AMP), help="autocast dtype (none)")
    parser.add_argument("--out", type=Path, help="folder for results (evaluation/ beside the weights)")
    parser.add_argument("--report", action="store_true", help="also write report.html")
    parser.add_argument("--json", action="store_true", help="print metrics.json instead of the table")


def check_arguments(args: argparse.Namespace) -> None:
    """Before anything is computed that could not be written."""
    if (args.threshold is None) == (args.protocol == "fixed"):
        raise InputError("--threshold T and --protocol fixed go together")
    if args.threshold is not None and not 0 <= args.threshold < 1:
        raise InputError(f"--threshold must be in [0, 1), got {args.threshold}")


def evaluate(args: argparse.Namespace, predictor: Predictor, split: str) -> Run:
    """One pass over a split."""
    dataset = open_dataset(
        args.data,
        split,
        args.layout,
        images=args.images,
        boxes=args.boxes,
        skip_bad_images=args.skip_bad_images,
    )
    if args.protocol == "heldout" and not dataset.records.has_boxes:
        raise InputError(f"{args.data}, split {split}: {protocols.HELDOUT_NEEDS_BOXES}")
    loader = build_evaluation_loader(
        dataset,
        evaluation_preprocessing(predictor.model),
        batch_size=args.batch_size,
        workers=args.workers,
        device=predictor.device,
        skip_bad_images=args.skip_bad_images,
    )
    prescribed = protocols.settings(args.protocol)
    fixed = () if args.threshold is None else (args.threshold,)
    evaluator = Evaluator(**{"step": args.step, **prescribed}, fixed=fixed)
    return evaluate_split(predictor, dataset, loader, evaluator)


def execute(args: argparse.Namespace) -> int:
    check_arguments(args)
    device = start_processes(args.device)
    model = load_model(args.checkpoint).to(device)
    strategy = Strategy.parse(args.strategy)
    strategy.check(model)
    predictor = Predictor(model, device, strategy, AMP[args.amp])
    checkpoint = Path(args.checkpoint)
    out = args.out or (checkpoint if checkpoint.is_dir() else checkpoint.parent) / "evaluation"
    on_first(make_folder, out, "--out")

    if args.protocol == "heldout":
        validation = evaluate(args, predictor, args.val_split)
        test = evaluate(args, predictor, args.split)
        result = protocols.heldout(test.evaluation, validation.evaluation)
    else:
        test = evaluate(args, predictor, args.split)
        given = {"threshold": args.threshold} if args.protocol == "fixed" else {}
        result = protocols.PROTOCOLS[args.protocol](test.evaluation, **given)

    about = output.describe(predictor, checkpoint, args.data, args.split)
    if is_first():
        output.write_all(out, result, test, about)
        if args.report:
            write_report(out / "report.html", result, test, predictor, about)
        print((out / "metrics.json").read_text() if args.json else output.summary(result, test, out))
    end_processes()
    return 0
