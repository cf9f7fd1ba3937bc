"""Reasons why a run stops before its end."""

from __future__ import annotations

import logging
import signal
from types import FrameType
from typing import Any

from .. import distributed


class Interrupted(Exception):
    """A signal stopped the run, after a checkpoint."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class Diverged(Exception):
    """Loss or gradient is no longer a number."""


class StopSignal:
    """A context in which SIGTERM or SIGINT asks to stop after the step; the third one stops at once."""

    def __init__(self) -> None:
        self.number = 0
        self._count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._count += 1
        if self._count == 1 and distributed.is_first():
            name = signal.Signals(number).name
            logging.getLogger("scm_fast").warning("%s: stopping after this step", name)
        if self._count > 2:
            signal.default_int_handler(number, frame)
