"""Files that are either the old ones or the new ones, whenever the power goes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from .errors import InputError


def make_folder(path: Path, option: str) -> None:
    """Make the folder that an option names, if it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InputError(f"{option} {path}: this is a file, not a folder") from None
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be made a folder ({error.strerror})") from error


def readable_size(count: float) -> str:
    """Bytes in the unit that suits them: 17 MB."""
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.3g} {units[0]}"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path to write to; when the block ends well, that file is on the disk and takes `path`'s place."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the rename itself: elsewhere, folders cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def replace_section(path: Path, name: str, text: str) -> None:
    """Put `text` between the lines `<!-- name -->` and `<!-- /name -->` of a markdown file."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = path.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise InputError(f"{path} has no section between {begin.strip()} and {end}")
    with replacing(path) as partial:
        partial.write_text(f"{before}{begin}{text}\n{end}{after}")
