"""The progress of `predict`: a line per image, on the disk before the next image's.

A command that was stopped, by Ctrl-C or a full disk, is given again and goes on after the last whole line. The file
is there while the work is; the results are made of it at the end, image by image.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import InputError
from .formats import Finding

FILE = "unfinished.jsonl"


class Journal:
    """The findings of an output folder. Iterating reads them from the disk.

    options: what makes the findings; a journal that was begun with others is not gone on with.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self.path = folder / FILE
        self._options = json.loads(json.dumps(options))
        self._descriptor = -1
        self._end = 0  # of the last whole line
        self.done: set[str] = set()  # images, of those that are asked for
        self.notes: dict[str, Any] = {}  # what the command found out before the first image

    def begin(self, images: Container[str]) -> None:
        """Open the journal, with what is in it about `images` if these options have begun it."""
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        lines = self._lines()
        header = next(lines, None)
        if header is None:
            return
        if header["options"] != self._options:
            changed = ", ".join(
                f"{name.replace('_', '-')} was {header['options'].get(name)} and is now {value}"
                for name, value in self._options.items()
                if header["options"].get(name) != value
            )
            raise InputError(
                f"{self.path}: an unfinished command with other options ({changed}). Give that command to finish "
                f"it, or --out another folder, or remove the file"
            )
        self.notes = header["notes"]
        self.done = {line["image"] for line in lines if line["image"] in images}

    def start(self, notes: Mapping[str, Any]) -> None:
        """Write the first line, unless the journal goes on."""
        if self._end == 0:
            self.notes = dict(notes)
            self._append({"options": self._options, "notes": self.notes})

    def add(self, finding: Finding) -> None:
        self._append(finding._asdict())
        self.done.add(finding.image)

    def __iter__(self) -> Iterator[Finding]:
        lines = self._lines()
        next(lines, None)
        for line in lines:
            if line["image"] not in self.done:  # removed since then
                continue
            yield Finding(**{**line, "size": tuple(line["size"])})

    def __len__(self) -> int:
        return len(self.done)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    def _lines(self) -> Iterator[dict[str, Any]]:
        """The whole lines; a last one that was cut short is not counted, and is written over."""
        end = 0
        with self.path.open("rb") as file:
            for line in file:
                try:
                    content = json.loads(line)
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    break
                end += len(line)
                yield content
        self._end = end

    def _append(self, content: Mapping[str, Any]) -> None:
        """A whole line or none: on a full disk, what of it was written is taken back."""
        line = json.dumps(content).encode() + b"\n"
        os.ftruncate(self._descriptor, self._end)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError as error:
            os.ftruncate(self._descriptor, self._end)
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        self._end += len(line)
