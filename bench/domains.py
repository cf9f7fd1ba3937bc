"""Measure every method on several kinds of photos without boxes: one row for each.

    python bench/domains.py butterflies=DATA cars=DATA birds=CUB_development --pretrained deit_tiny.safetensors \\
        --out runs/domains --set "{amp: bf16}"

Each SET is a name and a data folder: one that any layout knows, or one with `set/` (a folder per split, with a
folder per class) and `boxes.json` (COCO) beside it. Every method trains on the same images without a box. The
last model is evaluated on the test images: GT-Known and mean IoU by the threshold that is chosen without boxes
(`unboxed`), and the best GT-Known of any rule and value, which boxes of the test images would choose. Beside them
stand a centred box, the whole image, and the attention of the same weights before any training.

What is finished is left as it is, and a training that was stopped goes on. The table is printed, and written to
OUT/domains.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from scm_fast import InputError, load_model
from scm_fast.data import DataSource
from scm_fast.evaluation import EvaluationSettings, Predictor, SplitResult, evaluate
from scm_fast.files import replacing
from scm_fast.models import load_classifier
from scm_fast.runs.comparison_output import table
from scm_fast.threshold import rule_names
from scm_fast.training import Trainer, make_config
from scm_fast.training.recipes import read_recipe
from scm_fast.training.stopping import Diverged, Interrupted

# A plain fine-tuning, which TS-CAM and SCM share; as long as custom_folder.
PLAIN = {"preset": "official", "lr": 5e-5, "warmup_epochs": 0, "epochs": 10, "skip_bad_images": True}
PAPER = {"iterations": 4, "detach_init": False}
ATTENTION = "attention"
METHODS: dict[str, dict[str, Any]] = {
    "tscam": {**PLAIN, "method": "tscam"},
    "scm": {**PLAIN, "method": "scm", "calibration": PAPER},
    "sat-0.25": {
        **read_recipe("custom_folder"),
        "method_options": {"area": 0.25, "fusion": "product", "start": "cls"},
        "calibration": {},
    },
    "custom_folder": read_recipe("custom_folder"),
}
COLUMNS = (
    "set",
    "method",
    "seed",
    "top1_cls",
    "gt_known",
    "mean_iou",
    "best_gt_known",
    "best_rule",
    "threshold",
)


def source_of(folder: Path) -> DataSource:
    boxes = folder / "boxes.json"
    return DataSource(str(folder / "set"), boxes=str(boxes)) if boxes.is_file() else DataSource(str(folder))


def train(name: str, folder: Path, method: str, seed: int, args: argparse.Namespace) -> Path:
    """Train to the last epoch; give the folder of the last model."""
    source = source_of(folder)
    out = args.out / f"{name}-{method}-{seed}"
    given = {
        "data": str(source.root),
        "boxes": source.boxes,
        "backbone": args.backbone,
        "pretrained": args.pretrained,
        "seed": seed,
        "out": str(out),
        "resume": "auto",
    }
    config = make_config(METHODS[method] | args.set | given, f"{name}, {method}")
    trainer = Trainer(config, torch.device("cpu"), source)
    with contextlib.closing(trainer.logs), trainer.stop:
        while trainer.loader.epoch < config.epochs:
            trainer.train_epoch()
            trainer.save()
            print(f"{name}, {method}, seed {seed}: epoch {trainer.loader.epoch}/{config.epochs}", flush=True)
    return out / "last"


def figures(done: SplitResult) -> dict[str, Any]:
    """Give what a row has of an evaluation under `unboxed`."""
    best = {rule: done.metrics.best("gt_known", rule) for rule in rule_names()}
    rule = max(best, key=lambda name: best[name][0])
    metrics = {name: metric.value for name, metric in done.result.metrics.items()}
    return {
        "top1_cls": metrics.get("top1_cls"),
        "gt_known": metrics["gt_known"],
        "mean_iou": metrics["mean_iou"],
        "best_gt_known": best[rule][0],
        "best_rule": f"{rule}:{best[rule][1]:g}",
        "threshold": str(done.result.threshold),
    }


def measure(
    name: str, folder: Path, method: str, seed: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Give the row of a method, and with the attention's those of the boxes that look at nothing."""
    file = args.out / f"{name}-{method}-{seed}.json"
    if file.is_file():
        return json.loads(file.read_text())
    if method == ATTENTION:
        model = load_classifier(args.backbone, args.pretrained)
        predictor = Predictor(model, torch.device("cpu"), map=ATTENTION, foreign_classes=True)
    else:
        predictor = Predictor(load_model(train(name, folder, method, seed, args)), torch.device("cpu"))
    begin = time.perf_counter()
    done = evaluate(predictor, source_of(folder), EvaluationSettings("unboxed", workers=0))
    rows = [{"set": name, "method": method, "seed": seed, **figures(done)}]
    if method == ATTENTION:
        for baseline, values in done.result.baselines.items():
            rows.append(
                {"set": name, "method": baseline, "seed": "", **{k: values.get(k) for k in COLUMNS[3:6]}}
            )
    with replacing(file) as partial:
        partial.write_text(json.dumps(rows))
    print(f"{name}, {method}: evaluated in {time.perf_counter() - begin:.0f} s", flush=True)
    return rows


def text(rows: list[dict[str, Any]]) -> str:
    def cell(value: object) -> str:
        return "" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)

    return table([list(COLUMNS), *([cell(row.get(name)) for name in COLUMNS] for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--pretrained", required=True, help="weights of the backbone, a file")
    parser.add_argument("--backbone", default="deit_tiny_patch16_224")
    parser.add_argument("--out", required=True, type=Path, help="folder for the runs and the table")
    parser.add_argument("--methods", nargs="+", choices=[ATTENTION, *METHODS], default=[ATTENTION, *METHODS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument(
        "--set", type=yaml.safe_load, default={}, help="further options of all, as '{amp: bf16}'"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for item in args.sets:
        name, equals, folder = item.partition("=")
        if not equals or not Path(folder).is_dir():
            parser.error(f"{item!r}: expected a name and a data folder, as birds=CUB_development")
        for method in args.methods:
            for seed in args.seeds if method != ATTENTION else [0]:
                rows += measure(name, Path(folder), method, seed, args)
                with (
                    replacing(args.out / "domains.csv") as partial,
                    open(partial, "w", newline="", encoding="utf-8") as file,
                ):
                    writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(rows)
    print(text(rows))


if __name__ == "__main__":
    try:
        main()
    except (InputError, Interrupted, Diverged) as error:
        sys.exit(f"{Path(__file__).name}: {error}")
