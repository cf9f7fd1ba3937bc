"""Run folders and evaluation folders as data: configuration, logs and the evaluation of the test split."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import InputError
from ..evaluation.results import METRICS_FILE
from ..training.config import TrainConfig, make_config
from ..training.recipes import read_yaml

# Numbers, but for the name in `threshold_rule`. None: there was nothing to write, as a threshold without boxes.
Row: TypeAlias = "dict[str, Any]"
TEXT = ("threshold_rule",)
EVALUATION = ("metrics", "baselines", "images", "threshold", "threshold_rule", "protocol")
# What an evaluation says about its model; of a run's, the configuration is asked.
MODEL = ("checkpoint", "backbone", "method", "map", "strategy", "mirror", "data", "split", "interpolation")


@dataclass(frozen=True)
class Run:
    """The files that a run has written so far."""

    path: Path
    config: TrainConfig
    steps: list[Row]  # steps.csv
    epochs: list[Row]  # log.csv
    evaluation: dict[str, Any] | None  # metrics.json of the test split; None if the run is not finished

    @property
    def chosen_metric(self) -> str:
        """The metric of the validation split that the kept model is best by; classification without boxes."""
        chosen = self.config.best_metric
        return chosen if any(chosen in row for row in self.epochs) else "top1_cls"

    @property
    def best_epoch(self) -> Row | None:
        """The log of the epoch whose model was kept, the first of equals; None if none was validated yet."""
        if not self._validated:
            return None
        return max(self._validated, key=lambda row: _value(row, self.chosen_metric))

    @property
    def kept_model(self) -> Path:
        """The folder of the best model, or of the newest if none was validated yet."""
        return self.path / (f"best_{self.chosen_metric}" if self._validated else "last")

    @property
    def _validated(self) -> list[Row]:
        return [row for row in self.epochs if row.get(self.chosen_metric) is not None]

    def column(self, name: str) -> list[float]:
        """A column of log.csv, with NaN for what was not known."""
        return [_value(row, name, float("nan")) for row in self.epochs]


@dataclass(frozen=True)
class Evaluated:
    """The files of `scm-fast evaluate --out`: a model of whatever origin, on a split."""

    path: Path
    evaluation: dict[str, Any]  # metrics.json

    @property
    def foreign_classes(self) -> bool:
        """True if the model's classes were not those of the data."""
        return self.evaluation.get("foreign_classes", False)

    @property
    def method(self) -> str:
        """The method, and the map if it is not the method's own; the map alone of a classifier as it is."""
        method, map_name = self.evaluation["method"], self.evaluation["map"]
        own = map_name.removeprefix("of method ")
        if own == map_name and not self.foreign_classes:
            own = f"{method}, {map_name}"
        return own + (", mirror" if self.evaluation["mirror"] else "")


def read_folder(path: str | Path) -> Run | Evaluated:
    """The run or the evaluation in a folder."""
    path = Path(path)
    metrics = path / METRICS_FILE
    if metrics.is_file() and not (path / "config.yaml").is_file():
        return Evaluated(path, _read_metrics(metrics, EVALUATION + MODEL))
    return read_run(path)


def read_run(path: str | Path) -> Run:
    """The run in a folder that train.py wrote, finished or not."""
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path}: no such run folder")
    if not (path / "config.yaml").is_file():
        raise InputError(f"{path}: not a run folder: train.py would have written config.yaml there")
    config = make_config(read_yaml(path / "config.yaml"), str(path / "config.yaml"))
    metrics = path / "evaluation" / METRICS_FILE
    return Run(
        path,
        config,
        _read_rows(path / "steps.csv"),
        _read_rows(path / "log.csv"),
        _read_metrics(metrics, EVALUATION) if metrics.is_file() else None,
    )


def _read_metrics(path: Path, needed: Sequence[str]) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not the metrics of an evaluation ({error})") from error
    if not isinstance(content, dict) or (missing := [name for name in needed if name not in content]):
        what = f"no {', '.join(missing)}" if isinstance(content, dict) else "not a JSON object"
        raise InputError(f"{path}: not the metrics of an evaluation ({what})")
    return content


def _read_rows(path: Path) -> list[Row]:
    """The whole rows of a log: the last one may have been cut short, or be half written at the moment."""
    if not path.is_file():
        return []
    rows: list[Row] = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if None in row or None in row.values():
                continue
            try:
                rows.append(
                    {name: value if name in TEXT else float(value) for name, value in row.items() if value}
                    | {name: None for name, value in row.items() if not value}
                )
            except ValueError as error:
                raise InputError(f"{path}: row {len(rows) + 1} is not of numbers ({error})") from error
    return rows


def _value(row: Row, name: str, otherwise: float = float("-inf")) -> float:
    value = row.get(name)
    return otherwise if value is None else value
