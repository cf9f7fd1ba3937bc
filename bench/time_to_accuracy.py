"""Measure how long a recipe trains until it localises well: one row for each recipe and seed.

    python bench/time_to_accuracy.py cub_deit_tiny cub_deit_tiny_fast --data CUB_development \\
        --pretrained deit_tiny.safetensors --out runs/accuracy --seeds 0 1

Each RECIPE is the name of a file of configs/, or a YAML file. It is trained on `trainval`, that is on all images
but the test images of the folder, and after each epoch the test images are evaluated under protocol `maxbox`. The
clock stops at the first epoch whose GT-Known and Top-1 Loc both reach the mark (--to-the-end: at the last epoch).
Meant for CUB's training images alone, divided by bench/make_development_split.py: choose nothing on images that
are to be reported on.

core-minutes: processor time of the training steps with loading and decoding, all in this process; evaluation is not
counted. Give one thread (OMP_NUM_THREADS=1) to have them comparable on a machine that does other things too. A run
that was stopped goes on after its last whole epoch. The table is printed, and written to OUT/time_to_accuracy.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import datetime
import json
import sys
import time
from pathlib import Path

import torch
import yaml

from scm_fast import InputError
from scm_fast.environment import commit, device_name, versions
from scm_fast.files import replacing
from scm_fast.runs.comparison_output import table
from scm_fast.training import TrainConfig, Trainer, make_config
from scm_fast.training.recipes import read_recipe
from scm_fast.training.stopping import Diverged, Interrupted

GT_KNOWN, TOP1_LOC = 88.5, 46.5  # percent: what the paper's calibration has after three epochs of its recipe
NEVER = 10**9  # checkpoints between epochs: time is counted in whole epochs


@dataclasses.dataclass(frozen=True)
class Row:
    """A run up to the epoch in which it reached the mark, or to its last."""

    recipe: str
    seed: int
    reached: bool
    epochs: int
    steps: int
    images: int  # that were trained on, each as often as it was seen
    core_minutes: float
    top1_cls: float
    top1_loc: float
    gt_known: float
    max_box_acc_v2: float
    gt_known_mark: float
    top1_loc_mark: float
    threads: int
    amp: str
    device: str
    torch: str
    commit: str
    date: str


SHOWN = {
    "recipe": "",
    "seed": "",
    "epochs": "",
    "images": "",
    "core_minutes": ".1f",
    "reached": "",
} | dict.fromkeys(("top1_cls", "top1_loc", "gt_known", "max_box_acc_v2"), ".1f")


def time_run(config: TrainConfig, recipe: str, marks: tuple[float, float], to_the_end: bool) -> Row:
    """Train until the marks (GT-Known, Top-1 Loc) are reached, or to the last epoch."""
    trainer = Trainer(config, torch.device("cpu"))
    clock = trainer.folder.path / "core_seconds.json"
    # Seconds by the number of epochs they were spent on: one that was stopped in its evaluation is trained again.
    spent = {"0": 0.0}
    if trainer.step:
        if not clock.is_file():
            raise InputError(
                f"{clock}: not there, so the time of this run is not known; give --out another folder"
            )
        spent = json.loads(clock.read_text())
    values: dict[str, float] = {}
    reached = False
    with contextlib.closing(trainer.logs), trainer.stop:
        while trainer.loader.epoch < config.epochs and (to_the_end or not reached):
            begin, before = time.process_time(), spent[str(trainer.loader.epoch)]
            try:
                trainer.train_epoch()
            finally:  # a run that a signal stops goes on after its last step: what it took until there counts
                spent[str(trainer.loader.epoch)] = before + time.process_time() - begin
                with replacing(clock) as partial:
                    partial.write_text(json.dumps(spent))
            result = trainer.validate_epoch()
            values = {name: metric.value for name, metric in result.metrics.items()}
            if "gt_known" not in values:
                raise InputError(f"{config.data}: its test images have no boxes to measure with")
            reached = values["gt_known"] >= marks[0] and values["top1_loc"] >= marks[1]
    if not values:
        raise InputError(
            f"{trainer.folder.path}: this run has come to its end before; give --out another folder"
        )
    return Row(
        recipe=recipe,
        seed=config.seed,
        reached=reached,
        epochs=trainer.loader.epoch,
        steps=trainer.step,
        images=trainer.step * trainer.global_batch,
        core_minutes=round(spent[str(trainer.loader.epoch)] / 60, 4),
        **{name: round(values[name], 2) for name in ("top1_cls", "top1_loc", "gt_known", "max_box_acc_v2")},
        gt_known_mark=marks[0],
        top1_loc_mark=marks[1],
        threads=torch.get_num_threads(),
        amp=str(trainer.amp or "float32").removeprefix("torch."),
        device=device_name(torch.device("cpu")),
        torch=str(versions()["torch"]),
        commit=commit(),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def write_rows(path: Path, rows: list[Row]) -> None:
    with replacing(path) as partial, open(partial, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(dataclasses.asdict, rows))


def text(rows: list[Row]) -> str:
    cells = [[f"{getattr(row, name):{style}}" for name, style in SHOWN.items()] for row in rows]
    return table([list(SHOWN), *cells])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipes", nargs="+", metavar="RECIPE")
    parser.add_argument("--data", required=True, help="a CUB folder")
    parser.add_argument("--pretrained", required=True, help="weights of the recipe's backbone, a file")
    parser.add_argument("--out", required=True, type=Path, help="folder for the runs and the table")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--gt-known", type=float, default=GT_KNOWN, help=f"the mark, in percent ({GT_KNOWN})")
    parser.add_argument("--top1-loc", type=float, default=TOP1_LOC, help=f"the mark, in percent ({TOP1_LOC})")
    parser.add_argument("--to-the-end", action="store_true", help="train all epochs of the recipes")
    parser.add_argument("--set", default="{}", help="further options of all recipes, as '{amp: bf16}'")
    args = parser.parse_args()
    further = yaml.safe_load(args.set)
    if not isinstance(further, dict):
        parser.error(f"--set {args.set!r}: expected options as '{{amp: bf16}}'")
    rows = []
    for seed in args.seeds:
        for recipe in args.recipes:
            given = {
                "data": args.data,
                "pretrained": args.pretrained,
                "seed": seed,
                "train_split": "trainval",
                "val_split": "test",
                "protocol": "maxbox",
                "workers": 0,
                "device": "cpu",
                "checkpoint_steps": NEVER,
                "resume": "auto",
                "out": str(args.out / f"{Path(recipe).stem}-{seed}"),
            }
            config = make_config(read_recipe(recipe) | further | given, recipe)
            rows.append(time_run(config, Path(recipe).stem, (args.gt_known, args.top1_loc), args.to_the_end))
            write_rows(args.out / "time_to_accuracy.csv", rows)
    print(text(rows))


if __name__ == "__main__":
    try:
        main()
    except (InputError, Interrupted, Diverged) as error:
        sys.exit(f"{Path(__file__).name}: {error}")
