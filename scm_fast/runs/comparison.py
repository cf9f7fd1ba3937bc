"""Runs side by side, and evaluations of other models: what they reached, how runs were configured, and whether the
figures can be compared at all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..training.config import OPTIONS
from .reading import Evaluated, Run

COMPARED = [name for name, option in OPTIONS.items() if option.metadata["compare"]]
METRICS = ("top1_cls", "top1_loc", "gt_known", "max_box_acc_v2")  # of the validation split


@dataclass(frozen=True)
class Summary:
    """A figure of one run, or of several that only their seed tells apart."""

    mean: float
    deviation: float | None  # sample standard deviation; None for one run
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Summary | None:
        known = [value for value in values if value is not None and not math.isnan(value)]
        if not known:
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))

    def as_dict(self) -> dict[str, float | int | None]:
        return {"mean": self.mean, "standard_deviation": self.deviation, "runs": self.count}


@dataclass(frozen=True)
class Tested:
    """The test split of one model, or of several that only their seed tells apart; None for an unfinished run."""

    evaluations: list[dict[str, Any] | None]

    @cached_property
    def finished(self) -> list[dict[str, Any]]:
        return [evaluation for evaluation in self.evaluations if evaluation is not None]

    @cached_property
    def figures(self) -> dict[str, Summary | None]:
        """Return the figures by name; `unboxed` is GT-Known with the threshold that was chosen without boxes."""
        metrics = [(evaluation, evaluation["metrics"]) for evaluation in self.finished]
        values = {
            name: [_value(of, name) for _, of in metrics]
            for name in ("top1_cls", "top1_loc", "gt_known", "max_box_acc", "max_box_acc_v2")
        }
        values["unboxed"] = [
            _value((evaluation.get("unboxed") or {}).get("metrics", {}), "gt_known")
            for evaluation, _ in metrics
        ]
        # The values of several rules have no mean.
        values["threshold"] = (
            [e["threshold"] for e in self.finished] if len(self.threshold_rules) == 1 else []
        )
        values["seconds_per_image"] = [_seconds_per_image(evaluation) for evaluation in self.finished]
        return {name: Summary.of(found) for name, found in values.items()}

    @cached_property
    def threshold_rules(self) -> list[str]:
        return _rules(self.finished)

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Return what boxes that ignore the image score, by name and metric; empty if no run is finished."""
        return self.finished[0]["baselines"] if self.finished else {}


def _value(metrics: dict[str, Any], name: str) -> float | None:
    return metrics.get(name, {}).get("value")


def _rules(contents: Iterable[dict[str, Any]]) -> list[str]:
    return sorted({rule for content in contents if (rule := content.get("threshold_rule"))})


def _seconds_per_image(evaluation: dict[str, Any]) -> float | None:
    """Return seconds per image: on a CPU the time of all cores, without waiting; on a GPU the elapsed time."""
    timing = evaluation.get("timing")
    if timing is None:
        return None
    return timing["cpu_seconds_per_image" if timing["device"] == "cpu" else "seconds_per_image"]


@dataclass(frozen=True)
class Group:
    """Runs of one configuration, in the order in which they were given."""

    name: str
    runs: list[Run]

    @property
    def config(self) -> Any:
        return self.runs[0].config

    @cached_property
    def figures(self) -> dict[str, dict[str, Summary | None]]:
        """Return figures by split (`test`, `validation`) and metric, with `threshold` and the `epoch`."""
        best: list[dict[str, Any]] = [run.best_epoch or {} for run in self.runs]
        validation = {name: Summary.of(row.get(name) for row in best) for name in METRICS}
        one_rule = len(self.threshold_rules["validation"]) == 1  # values of several have no mean
        validation["threshold"] = Summary.of(row.get("threshold") for row in best) if one_rule else None
        validation["epoch"] = Summary.of(row["epoch"] + 1 if row else None for row in best)
        return {"test": self.test.figures, "validation": validation}

    @cached_property
    def test(self) -> Tested:
        return Tested([run.evaluation for run in self.runs])

    @cached_property
    def threshold_rules(self) -> dict[str, list[str]]:
        """Return the rules of the runs' thresholds, by split."""
        validation = _rules(run.best_epoch or {} for run in self.runs)
        return {"test": self.test.threshold_rules, "validation": validation}

    @cached_property
    def images_per_second(self) -> Summary | None:
        """Return the speed of training; the median epoch of each run."""
        speeds = [[row["images_per_second"] or 0.0 for row in run.epochs] for run in self.runs]
        return Summary.of(statistics.median(values) if values else None for values in speeds)

    @property
    def progress(self) -> str:
        """Epochs done, of those that were wanted if some are missing."""
        done = sorted({len(run.epochs) for run in self.runs})
        span = f"{done[0]}" if len(done) == 1 else f"{done[0]} to {done[-1]}"
        return span if done == [self.config.epochs] else f"{span} of {self.config.epochs}"


@dataclass(frozen=True)
class Row:
    """A model that was evaluated by itself."""

    name: str
    evaluated: Evaluated

    @cached_property
    def test(self) -> Tested:
        return Tested([self.evaluated.evaluation])


@dataclass(frozen=True)
class Comparison:
    """Rows that are put side by side; `names` identify the folders."""

    groups: list[Group]
    rows: list[Row]
    names: dict[Path, str]

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]


def make_comparison(folders: Sequence[Run | Evaluated]) -> Comparison:
    """Runs that differ in their seed alone together, everything else each by itself."""
    names = short_names([folder.path for folder in folders])
    members: dict[str, list[Run]] = {}
    rows = []
    for folder in folders:
        if isinstance(folder, Evaluated):
            rows.append(Row(names[folder.path], folder))
        else:
            values = folder.config.as_dict()
            members.setdefault(repr([values[name] for name in COMPARED]), []).append(folder)
    groups = [Group(", ".join(names[run.path] for run in runs), runs) for runs in members.values()]
    return Comparison(groups, rows, names)


def short_names(paths: Sequence[Path]) -> dict[Path, str]:
    """The folders' own names, or as much of their paths as tells them apart."""
    resolved = {path: path.resolve() for path in paths}
    for parts in range(1, max(len(path.parts) for path in resolved.values()) + 1):
        names = {path: "/".join(full.parts[-parts:]) for path, full in resolved.items()}
        if len(set(names.values())) == len(set(resolved.values())):
            break
    return names


def differences(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Options that are not the same in all groups, with the value of each."""
    values = [group.config.as_dict() for group in groups]
    found = {}
    for name in COMPARED:
        column = [value[name] for value in values]
        if any(value != column[0] for value in column):
            found[name] = column
    return found


def doubts(comparison: Comparison) -> list[str]:
    """Say why the figures may not show which model is better."""
    names, runs = comparison.names, comparison.runs
    conditions = [(names[run.path], _conditions_of_run(run)) for run in runs]
    conditions += [(row.name, _conditions_of_evaluation(row.evaluated)) for row in comparison.rows]
    sentences = []
    for what in dict.fromkeys(what for _, of in conditions for what in of):
        users: dict[Any, list[str]] = {}
        for name, of in conditions:
            if (found := of.get(what)) is not None:
                users.setdefault(found, []).append(name)
        if len(users) > 1:
            sentences.append(
                f"{what} differ: " + ", ".join(f"{key} ({', '.join(of)})" for key, of in users.items())
            )
    for run in runs:
        if run.evaluation is None:
            sentences.append(
                f"{names[run.path]} is not finished: {len(run.epochs)} of {run.config.epochs} epochs, "
                "and no test figures"
            )
    for group in comparison.groups:
        seeds = [run.config.seed for run in group.runs]
        if len(set(seeds)) < len(seeds):
            sentences.append(f"{group.name}: runs of one seed are no independent repetitions")
    return sentences


def _conditions_of_run(run: Run) -> dict[str, Any]:
    """Return what should be the same where figures are compared; None for what is not known."""
    config = run.config
    return {
        "the data": Path(config.data).name,
        "the training splits": config.train_split,
        "the validation splits": config.validation_name,
        "the test splits": config.test_split,
        "the protocols": config.protocol,
        "the fixed thresholds": config.threshold,
        **({} if run.evaluation is None else _conditions_of_test(run.evaluation)),
    }


def _conditions_of_evaluation(evaluated: Evaluated) -> dict[str, Any]:
    evaluation = evaluated.evaluation
    return {
        "the data": Path(evaluation["data"]).name,
        "the test splits": evaluation["split"],
        "the protocols": evaluation["protocol"],
        **_conditions_of_test(evaluation),
    }


def _conditions_of_test(evaluation: dict[str, Any]) -> dict[str, Any]:
    timing = evaluation.get("timing")
    return {
        "the numbers of test images": evaluation["images"],
        "the precisions of the test": evaluation.get("amp") or "float32",
        "the conditions of s/image": timing and f"{timing['device']}, threads: {timing['threads']}",
    }
