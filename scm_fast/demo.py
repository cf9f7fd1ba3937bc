"""The demo: attention alone, TS-CAM and SCM on the built-in set, side by side.

One network is trained to tell other classes of other pictures apart, as published weights were; both methods go on
from it with the same budget. Everything is kept in a folder, so that a demo that was stopped goes on where it was,
and a finished one is told again at once:

    pretraining/ tscam/ scm/     the runs, as `scm-fast train` writes them
    maps.png                     the first test images, with the maps and boxes of each method
    report.html                  all of them side by side
    demo.json                    the figures, when all is done
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from .data import DataSource
from .evaluation import Predictor, SplitResult, evaluate, write_results
from .evaluation.report import write_report
from .evaluation.report.gallery import of_several
from .files import replacing
from .models import load_model
from .training import TrainConfig, Trainer, make_config
from .training.pretraining import pretraining_config
from .training.recipes import BUILTIN, read_recipe
from .training.run_folder import RunFolder
from .training.validation import final_settings

METHODS = ("tscam", "scm")
# Every step in a minute, with a network too small and too short a training to localise well.
QUICK = {
    "backbone_options": {"patch_size": 16, "embed_dim": 48, "depth": 2, "num_heads": 2},
    "pretraining": {"data": "synthetic-pretraining", "epochs": 1, "warmup_epochs": 0},
    "epochs": 1,
    "warmup_epochs": 0,
}
PICTURES = 6  # of maps.png
EVALUATION_COST = 0.4  # of an image that is evaluated, in images that are trained on
FIGURES = {"gt_known": "GT-Known", "top1_loc": "Top-1 localisation", "top1_cls": "classification"}
CENTRE = "centred box"

Say = Callable[[str], None]


def run_demo(out: Path, device: torch.device, quick: bool = False, say: Say = print) -> str:
    """Do what is not done yet; gives the comparison, and where picture and report are."""
    recipe = read_recipe(BUILTIN) | (QUICK if quick else {}) | {"resume": "auto"}
    config = make_config(recipe | {"out": str(out)}, BUILTIN)
    finished = out / "demo.json"
    with RunFolder(out).locked():
        rows = _read(finished, recipe)
        if rows is None:
            rows = compare(config, device, say)
            with replacing(finished) as partial:
                partial.write_text(json.dumps({"recipe": recipe, "rows": rows}, indent=1) + "\n")
    return f"\n{_table(rows)}\n\npicture: {out / 'maps.png'}\nreport:  {out / 'report.html'}"


def _read(path: Path, recipe: dict[str, Any]) -> dict[str, dict[str, float]] | None:
    """The figures of a demo that was finished with this recipe."""
    try:
        content = json.loads(path.read_text())
        return content["rows"] if content["recipe"] == recipe else None
    except (OSError, ValueError, KeyError):
        return None


def compare(config: TrainConfig, device: torch.device, say: Say) -> dict[str, dict[str, float]]:
    """Train and evaluate all in the folder `config.out`; gives the figures of each in percent, by its name."""
    assert config.out is not None
    out, first = Path(config.out), pretraining_config(config)
    source, other = config.source(), first.source()
    say("1/6  drawing the built-in sets; all of it takes some minutes on two cores")
    for data, run in ((source, config), (other, first)):
        for name in (run.train_split, run.val_split, run.test_split):
            data.split(name)
    evaluated = len(METHODS) * len(source.split(config.test_split)) + sum(
        len(source.split(name)) for name in (config.val_split, config.test_split)
    )
    work = _Work(
        first.epochs * _epoch(first, other)
        + len(METHODS) * config.epochs * _epoch(config, source)
        + EVALUATION_COST * evaluated
    )
    say(f"2/6  training a network to start from on other classes, {first.epochs} epochs")
    start = _train(first, device, other, work)
    weights = {"pretrained": str(start.folder.path / start.kept_model()), "pretraining": {}}
    trainers = []
    for number, method in enumerate(METHODS, 3):
        run = make_config(config.as_dict() | weights | {"method": method, "out": str(out / method)}, BUILTIN)
        title = {"tscam": "TS-CAM, the baseline", "scm": "SCM, with the same budget"}[method]
        say(f"{number}/6  training {title}, {run.epochs} epochs{work.left()}")
        trainers.append(_train(run, device, source, work))
    say(f"5/6  evaluating all three on the test images{work.left()}")
    results = [_attention(start, config, source, device)]
    results += [_evaluate(trainer, source, device) for trainer in trainers]
    say("6/6  drawing picture and report")
    _draw(out / "maps.png", results)
    write_report(out / "report.html", results[-1], results[:-1])
    rows = {
        done.title: {name: metric.value for name, metric in done.result.metrics.items() if name in FIGURES}
        for done in results
    }
    rows[CENTRE] = {
        name: value
        for name, value in results[-1].result.baselines["centre box"].items()
        if name in FIGURES and name != "top1_cls"
    }
    return rows


def _train(config: TrainConfig, device: torch.device, source: DataSource, work: _Work) -> Trainer:
    begin = time.perf_counter()
    trainer = Trainer(config, device, source)
    already = trainer.loader.epoch
    trainer.fit()
    epoch = _epoch(config, source)
    work.did(config.epochs * epoch, (config.epochs - already) * epoch, time.perf_counter() - begin)
    return trainer


def _attention(start: Trainer, config: TrainConfig, source: DataSource, device: torch.device) -> SplitResult:
    """Evaluate the attention of the network to start from, which knows other classes, on the test split."""
    kept = start.folder.path / start.kept_model()
    predictor = Predictor(
        load_model(kept).to(device), device, amp=start.amp, name=str(kept), foreign_classes=True
    )
    return evaluate(predictor, source, replace(final_settings(config), report=True, all_maps=True))


def _evaluate(trainer: Trainer, source: DataSource, device: torch.device) -> SplitResult:
    """Evaluate on the test split; what training saw of the validation split is not looked at again."""
    kept = trainer.folder.path / trainer.kept_model()
    predictor = Predictor(load_model(kept).to(device), device, amp=trainer.amp, name=str(kept))
    settings = replace(final_settings(trainer.config), report=True, all_maps=True)
    done = evaluate(predictor, source, settings, trainer.kept_validation)
    write_results(trainer.folder.path / "evaluation", replace(done, maps=None))
    return done


def _epoch(config: TrainConfig, source: DataSource) -> float:
    """The work of an epoch, in images that are trained on."""
    return len(source.split(config.train_split)) + EVALUATION_COST * len(source.split(config.val_split))


class _Work:
    """The amount of work, in images that are trained on, and its speed."""

    def __init__(self, images: float) -> None:
        self._left = images
        self._seconds = self._images = 0.0

    def did(self, images: float, now: float, seconds: float) -> None:
        """Count so many images as done, of which `now` took `seconds`; the others were done before."""
        self._left -= images
        if now:
            self._images += now
            self._seconds += seconds

    def left(self) -> str:
        if not self._images:
            return ""
        seconds = round(self._left * self._seconds / self._images)
        return f"; about {seconds // 60} min {seconds % 60} s left in all"


def _draw(path: Path, results: Sequence[SplitResult]) -> None:
    """A column per image: the image, and below it the map of every method with both boxes."""
    columns = []
    for position in range(min(PICTURES, len(results[0].images))):
        rows = []
        for panel in of_several(results, position):
            label = np.full((18, panel.picture.shape[1], 3), 255, np.uint8)
            cv2.putText(
                label, panel.caption, (3, 13), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (0, 0, 0), 1, cv2.LINE_AA
            )
            rows += [label, panel.picture]
        columns.append(np.pad(np.vstack(rows), ((0, 0), (2, 2), (0, 0)), constant_values=255))
    encoded = cv2.imencode(".png", np.hstack(columns)[..., ::-1])[1]
    with replacing(path) as partial:
        partial.write_bytes(encoded.tobytes())


def _table(rows: dict[str, dict[str, float]]) -> str:
    width = max(map(len, rows))
    lines = [" ".join([" " * width, *(f"{title:>20}" for title in FIGURES.values())])]
    for title, figures in rows.items():
        cells = (f"{figures[name]:.1f}" if name in figures else "" for name in FIGURES)
        lines.append(" ".join([title.ljust(width), *(f"{cell:>20}" for cell in cells)]).rstrip())
    lines.append("percent of the test images; a box is right with an IoU of at least 0.5")
    lines.append("attention alone is that of the network to start from, which was trained on other classes")
    return "\n".join(lines)
