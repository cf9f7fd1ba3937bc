"""Runs side by side: what they reached, how they were configured, and whether they can be compared at all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..training.config import OPTIONS
from .reading import Run

COMPARED = [name for name, option in OPTIONS.items() if option.metadata["compare"]]
METRICS = ("top1_cls", "top1_loc", "gt_known", "max_box_acc_v2")


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
class Group:
    """Runs of one configuration, in the order in which they were given."""

    name: str
    runs: list[Run]

    @property
    def config(self) -> Any:
        return self.runs[0].config

    @cached_property
    def figures(self) -> dict[str, dict[str, Summary | None]]:
        """By split, `test` and `validation`, and metric; also `threshold`, and `epoch` of the validation."""
        test: list[dict[str, Any]] = [run.evaluation or {} for run in self.runs]
        best: list[dict[str, Any]] = [run.best_epoch or {} for run in self.runs]
        figures: dict[str, dict[str, Summary | None]] = {
            "test": {name: Summary.of(_test_value(content, name) for content in test) for name in METRICS},
            "validation": {name: Summary.of(row.get(name) for row in best) for name in METRICS},
        }
        for kind, contents in (("test", test), ("validation", best)):
            one_rule = len(self.threshold_rules[kind]) == 1  # values of several have no mean
            figures[kind]["threshold"] = (
                Summary.of(c.get("threshold") for c in contents) if one_rule else None
            )
        figures["validation"]["epoch"] = Summary.of(row["epoch"] + 1 if row else None for row in best)
        return figures

    @cached_property
    def threshold_rules(self) -> dict[str, list[str]]:
        """By split, the rules of the runs' thresholds."""
        contents = {
            "test": [run.evaluation or {} for run in self.runs],
            "validation": [run.best_epoch or {} for run in self.runs],
        }
        return {
            kind: sorted({rule for content in parts if (rule := content.get("threshold_rule"))})
            for kind, parts in contents.items()
        }

    @cached_property
    def images_per_second(self) -> Summary | None:
        """In training; of each run, the median epoch."""
        speeds = [[row["images_per_second"] or 0.0 for row in run.epochs] for run in self.runs]
        return Summary.of(statistics.median(values) if values else None for values in speeds)

    @cached_property
    def baselines(self) -> dict[str, dict[str, float]]:
        """What boxes that look at no image score on the test split, by name and metric; none if unfinished."""
        found = (run.evaluation["baselines"] for run in self.runs if run.evaluation is not None)
        return next(found, {})

    @property
    def progress(self) -> str:
        """Epochs done, of those that were wanted if some are missing."""
        done = sorted({len(run.epochs) for run in self.runs})
        span = f"{done[0]}" if len(done) == 1 else f"{done[0]} to {done[-1]}"
        return span if done == [self.config.epochs] else f"{span} of {self.config.epochs}"


def _test_value(evaluation: dict[str, Any], name: str) -> float | None:
    return evaluation.get("metrics", {}).get(name, {}).get("value")


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs that differ in their seed alone together, the others each by itself."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        values = run.config.as_dict()
        groups.setdefault(repr([values[name] for name in COMPARED]), []).append(run)
    names = short_names([run.path for run in runs])
    return [Group(", ".join(names[run.path] for run in members), members) for members in groups.values()]


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


def doubts(groups: Sequence[Group]) -> list[str]:
    """Why the figures may not say which run is better, in sentences."""
    runs = [run for group in groups for run in group.runs]
    names = short_names([run.path for run in runs])

    def varying(what: str, value: Callable[[Run], Any]) -> list[str]:
        users: dict[Any, list[str]] = {}
        for run in runs:
            if (found := value(run)) is not None:
                users.setdefault(found, []).append(names[run.path])
        if len(users) < 2:
            return []
        return [f"{what}: " + ", ".join(f"{key} ({', '.join(of)})" for key, of in users.items())]

    sentences = [
        *varying("the data differ", lambda run: Path(run.config.data).name),
        *varying("the training splits differ", lambda run: run.config.train_split),
        *varying("the validation splits differ", lambda run: run.config.validation_name),
        *varying("the test splits differ", lambda run: run.config.test_split),
        *varying(
            "the numbers of test images differ", lambda run: run.evaluation and run.evaluation["images"]
        ),
        *varying("the protocols differ", lambda run: run.config.protocol),
        *varying("the fixed thresholds differ", lambda run: run.config.threshold),
    ]
    for run in runs:
        if run.evaluation is None:
            sentences.append(
                f"{names[run.path]} is not finished: {len(run.epochs)} of {run.config.epochs} epochs, "
                "and no test figures"
            )
    for group in groups:
        seeds = [run.config.seed for run in group.runs]
        if len(set(seeds)) < len(seeds):
            sentences.append(f"{group.name}: runs of one seed are no independent repetitions")
    return sentences
