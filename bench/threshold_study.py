"""Show what a threshold rule gives, and what it costs to have no boxes: a row per checkpoint, map and class.

    python bench/threshold_study.py --data CUB_200_2011 --images 1000 \
        --checkpoint attention=runs/attention --checkpoint SCM=runs/scm/last

A markdown table of GT-Known in percent on the test split, with the value in parentheses:

    one threshold        the best for all images
    deviation, between,  each image's own rule, at its best value
    geometric
    between 0.2          the default of `between`, which nobody chose for these images
    unboxed              what the tokens of the validation split choose, which needs no box
    by 10, 30, 100       the same choice by so few of the evaluated images: mean and standard deviation of 50 draws

"Best" knows the boxes of these very images; the others do not. The map is F0, the attention, or F0*S0 of the true
or of the best class.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from scm_fast import InputError, load_model
from scm_fast.data import DataSource, LocalizationDataset
from scm_fast.data.opening import read_split, resolve_layout
from scm_fast.evaluation import EvaluationSettings, Predictor, SplitResult, Strategy, evaluate
from scm_fast.threshold import DEFAULT_THRESHOLD, FEWEST_IMAGES, choose_unboxed, rule_names

CURVES = {"true": "gt_known", "best": "gt_known_published"}  # by the class of the map
OWN_RULES = tuple(rule for rule in rule_names() if rule != "global")
DEFAULT = f"{DEFAULT_THRESHOLD.rule} {DEFAULT_THRESHOLD.value:g}"
COUNTS = (10, 30, 100)  # images that choose
DRAWS = 50
HEADINGS = (
    "checkpoint",
    "map",
    "class",
    "one threshold",
    *OWN_RULES,
    DEFAULT,
    "unboxed",
    *(f"by {n}" for n in COUNTS),
)


@dataclass
class SomeImages(DataSource):
    """`most` images of each split at equal distances; None for all."""

    most: int | None = None

    def split(self, name: str) -> LocalizationDataset:
        if (name, None) not in self._splits and self.most is not None:
            layout, folder = resolve_layout(self.root, self.layout)
            contents = read_split(layout, folder, name)
            ids = [record.id for record in contents.records]
            stride = max(1, len(ids) // self.most)
            contents.leave_out(set(ids) - set(ids[::stride][: self.most]))
            self._splits[name, None] = LocalizationDataset(contents, str(self.root))
        return super().split(name)


def rows(name: str, predictor: Predictor, source: DataSource) -> Iterator[list[str]]:
    """The lines of one checkpoint."""
    has_semantic = predictor.model.method.has_semantic
    for text in ("F0", "F0*S0") if has_semantic else ("F0",):
        predictor.strategy = Strategy.parse(text)
        done = evaluate(predictor, source, EvaluationSettings("unboxed", workers=0))
        for label in CURVES if text == "F0*S0" else ("best",):  # attention is the same for every class
            yield [name, text, label if text == "F0*S0" else "any", *figures(done, CURVES[label])]


def figures(done: SplitResult, curve: str) -> list[str]:
    metrics, chosen = done.metrics, done.result.threshold
    assert chosen is not None
    default = metrics.at(metrics.threshold(DEFAULT_THRESHOLD.value, DEFAULT_THRESHOLD.rule))[curve]
    cells = [*(best(done, curve, rule) for rule in ("global", *OWN_RULES)), f"{default:.1f}"]
    unboxed = f"{metrics.at(chosen)[curve]:.1f} ({chosen.value:.2f})"
    return [*cells, unboxed, *(chosen_by(done, curve, count) for count in COUNTS)]


def chosen_by(done: SplitResult, curve: str, count: int) -> str:
    """The figure of thresholds that so many images choose, whichever they are."""
    separation, draw = done.metrics.table.separation, np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        drawn = separation[draw.choice(len(separation), min(count, len(separation)), replace=False)]
        found.append(done.metrics.at(choose_unboxed(drawn).threshold)[curve])
    return f"{np.mean(found):.1f} ± {np.std(found):.1f}"


def best(done: SplitResult, curve: str, rule: str) -> str:
    figure, value = done.metrics.best(curve, rule)
    return f"{figure:.1f} ({value:.2f})"


def line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", action="append", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--data", required=True, help="data folder, or the word synthetic")
    parser.add_argument("--images", type=int, help="most images of each split (all)")
    parser.add_argument("--mirror", action="store_true", help="average with the mirror image")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.images is not None and args.images < FEWEST_IMAGES:
        parser.error(f"--images: {FEWEST_IMAGES} are needed to choose by")
    device = torch.device(args.device)
    source = SomeImages(args.data, most=args.images)
    if not source.split("test").records.has_boxes:
        parser.error(f"{args.data}: the test split has no boxes to measure with")
    counts = ", ".join(f"{len(source.split(name))} images of {name}" for name in ("val", "test"))
    print(f"{args.data}: {counts}\n\n{line(HEADINGS)}\n{line(['---'] * len(HEADINGS))}", flush=True)
    for entry in args.checkpoint:
        name, _, folder = entry.rpartition("=")
        predictor = Predictor(load_model(folder).to(device), device, name=folder, mirror=args.mirror)
        for cells in rows(name or folder, predictor, source):
            print(line(cells), flush=True)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"threshold_study: {error}")
