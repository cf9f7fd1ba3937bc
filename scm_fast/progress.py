"""Progress on what takes longer than seconds: tqdm's bar on a terminal, and a line every so often in a log file."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm as bar

FIRST, EVERY = 20.0, 60.0  # seconds to the first line, and between two


class tqdm(bar):
    """Takes tqdm's arguments. With `disable=None`, what is no terminal gets lines instead of nothing."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        stream = options.get("file") or sys.stderr
        self._in_lines = options.get("disable", False) is None and not stream.isatty()
        super().__init__(*arguments, **options)
        if not self._in_lines:
            return
        self._stream, self._done = stream, options.get("initial", 0)
        self._what, self._unit = options.get("desc"), options.get("unit", "it").strip()
        self._begin, self._begin_at, self._next = time.monotonic(), self._done, time.monotonic() + FIRST
        self.postfix = None

    def __iter__(self) -> Iterator[Any]:
        if not self._in_lines:
            yield from super().__iter__()
            return
        for item in self.iterable:
            yield item
            self.update()

    def update(self, n: float | None = 1) -> bool | None:
        if not self._in_lines:
            return super().update(n)
        self.n = self._done = self._done + (n or 0)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            print(self._line(), file=self._stream, flush=True)
        return None

    def _line(self) -> str:
        rate = (self._done - self._begin_at) / max(time.monotonic() - self._begin, 1e-9)
        parts = [f"{self._done:g}{f' of {self.total:g}' if self.total else ''} {self._unit}"]
        parts.append(
            f"{rate:.3g} {self._unit}/s" if rate >= 1 or not rate else f"{1 / rate:.3g} s per {self._unit}"
        )
        if self.total and rate:
            left = datetime.timedelta(seconds=round((self.total - self._done) / rate))
            parts.append(f"{left} left")
        if self.postfix:
            parts.append(self.postfix)
        return f"{f'{self._what}: ' if self._what else ''}{', '.join(parts)}"
