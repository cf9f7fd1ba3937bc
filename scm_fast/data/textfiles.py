"""Annotation text files, read with every malformed line reported instead of the first one raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from .records import Problem

Value = TypeVar("Value")


def read_rows(
    path: Path, problems: list[Problem], columns: str, *, separator: str | None = None
) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of each line that has as many fields as `columns` names; blank lines are skipped.

    A missing file and lines with another number of fields are added to `problems`.
    """
    if path.exists() and not path.is_file():  # to open a pipe may wait for ever
        problems.append(Problem(str(path), "not a regular file"))
        return
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        problems.append(Problem(str(path), f"no such file (expected lines of: {columns})"))
        return
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(str(path), f"cannot read this file ({error})"))
        return
    expected = len(columns.split(separator))
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        fields = [part.strip() for part in line.split(separator)]
        if len(fields) != expected:
            problems.append(Problem(f"{path}:{number}", f"{line.strip()!r} is not of the form {columns!r}"))
            continue
        yield number, fields


def read_mapping(
    path: Path,
    problems: list[Problem],
    columns: str,
    convert: Callable[[list[str]], Value],
    *,
    separator: str | None = None,
) -> dict[str, Value]:
    """First field -> convert(other fields), for files with one line per key. Repeated keys are problems."""
    mapping: dict[str, Value] = {}
    for number, (key, *values) in read_rows(path, problems, columns, separator=separator):
        if key in mapping:
            problems.append(Problem(f"{path}:{number}", f"duplicated id {key!r}"))
            continue
        try:
            mapping[key] = convert(values)
        except ValueError:
            problems.append(Problem(f"{path}:{number}", f"{values} are not the numbers of {columns!r}"))
    return mapping
