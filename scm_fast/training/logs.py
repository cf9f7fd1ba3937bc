"""Logs of a run: a row every step and every epoch, as csv and for TensorBoard."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..extras import require_extra
from ..files import replacing


def check_tensorboard() -> None:
    require_extra("tensorboard", "tensorboard", "--tensorboard")


class RunLogs:
    """The logs of a run folder; only the first process has them.

    A resumed run comes back to its last checkpoint and writes again what came after it, so `begin` forgets
    that part of the logs. Steps and epochs are written to TensorBoard as two runs, each with its own axis: a
    point is forgotten by its place on the axis, and the figures of an epoch are known some time after its
    last step.
    """

    def __init__(self, folder: Path, tensorboard: bool) -> None:
        self._logs = {name: CsvLog(folder / f"{name}.csv") for name in ("steps", "log")}
        self._folder, self._tensorboard = folder, tensorboard
        self._writers: dict[str, Any] = {}

    def begin(self, step: int, epoch: int) -> None:
        """Forget steps from `step` and epochs from `epoch` on."""
        self._logs["steps"].keep_below("step", step)
        self._logs["log"].keep_below("epoch", epoch)
        if self._tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            for name, begin in (("steps", step), ("epochs", epoch)):
                folder = self._folder / "tensorboard" / name
                self._writers[name] = SummaryWriter(str(folder), purge_step=begin)

    def add_step(self, row: Mapping[str, Any]) -> None:
        self._logs["steps"].add(row)
        self._draw("steps", row["step"], {f"step/{name}": row[name] for name in row})

    def add_epoch(self, row: Mapping[str, Any]) -> None:
        self._logs["log"].add(row)
        # lam_1 ... lam_4 belong together, and so do the betas.
        tags = {
            name: name.replace("_", "/") if name.startswith(("lam_", "beta_")) else f"epoch/{name}"
            for name in row
        }
        self._draw("epochs", row["epoch"], {tags[name]: row[name] for name in row})

    def _draw(self, writer: str, place: int, values: Mapping[str, float | str | None]) -> None:
        if writer not in self._writers:
            return
        for tag, value in values.items():
            if isinstance(value, (int, float)) and tag not in ("step/step", "epoch/epoch"):
                self._writers[writer].add_scalar(tag, value, place)

    def flush(self) -> None:
        """Flush before a checkpoint: a run that resumes from it must find every point up to here."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class CsvLog:
    """A table that grows by a row at a time, each on the disk before the next."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns, _ = self._read()

    def keep_below(self, column: str, limit: int) -> None:
        """Drop rows from `limit` on, which a resumed run writes again, and a row that was cut short."""
        _, rows = self._read()
        whole = [
            row for row in rows if None not in row and None not in row.values() and row[column].isdigit()
        ]
        kept = [row for row in whole if int(row[column]) < limit]
        if kept:
            self._write(kept)
        else:
            self.path.unlink(missing_ok=True)
            self._columns = []

    def add(self, row: Mapping[str, object]) -> None:
        """Columns that are new, as when a resumed run finds boxes, are empty in the rows before it."""
        if new := [name for name in row if name not in self._columns]:
            self._columns = self._columns + new
            self._write(self._read()[1])
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        """Columns and rows; none of either where there is no file."""
        if not self.path.is_file():
            return [], []
        with self.path.open(newline="") as file:
            reader = csv.DictReader(file)
            return list(reader.fieldnames or ()), list(reader)

    def _write(self, rows: list[dict[str, str]]) -> None:
        with replacing(self.path) as partial, partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)
