"""Parse every command's arguments, report what went wrong, and end.

Exit status: 0 all well; 1 it ran, and found problems; 2 wrong arguments or input; 128 + n stopped by signal n
(130 for Ctrl-C, 141 when the reader of a pipe went away).
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from ..errors import InputError, LostProcess


class Choices(Iterable[str]):
    """Choices of an option that are found out when somebody looks."""

    def __init__(self, find: Callable[[], Iterable[str]]) -> None:
        self._find = find

    def __iter__(self) -> Iterator[str]:
        return iter(self._find())

    def __contains__(self, value: object) -> bool:
        return value in tuple(self._find())


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and which knows what was meant by a mistyped option."""

    def __init__(self, program: str, description: str | None) -> None:
        super().__init__(
            prog=program,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._choices: list[argparse.Action] = []

        self.before_help: Callable[[], None] = lambda: None  # what only --help needs to know

    def add_choice(self, name: str, choices: Callable[[], Iterable[str]], **options: Any) -> None:
        """An option whose choices are found out when it is given, or by --help: that may import torch."""
        self._choices.append(self.add_argument(name, choices=Choices(choices), metavar="NAME", **options))

    def format_help(self) -> str:
        self.before_help()
        for action in self._choices:
            action.metavar = None  # argparse lists the choices
        return super().format_help()

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        # Before argparse misses a required option: the unknown one may be that, mistyped.
        known = list(self._option_string_actions)
        for word in args:
            name = word.split("=")[0]
            if word == "--":
                break
            if word.startswith("--") and name not in known:
                near = difflib.get_close_matches(name, known, 1)
                self.error(f"unknown option {name}" + (f"; did you mean {near[0]}?" if near else ""))
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} ({self.prog} --help)\n")


class Stop(Exception):
    """Raised by a command to end with a message and a status of its own."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def guarded(program: str, action: Callable[[], int | None]) -> int:
    """The status of `action`; what a user can mend is printed in a line or two, without a traceback."""
    if hasattr(sys.stdout, "reconfigure"):  # names of files may be any bytes
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _messages_on_stderr():
            status = action() or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # `| head` has read enough. Python flushes once more at its end: into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Stop as stop:
        return _report(program, str(stop), stop.status)
    except LostProcess as error:
        return _report(program, str(error), 1, _is_first_of_its_machine())
    except InputError as error:
        return _report(program, f"error: {error}", 2)
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise  # not about a file that somebody named
        return _report(program, f"error: {error.filename or 'disk'}: {error.strerror}", 2)
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's; it is not imported for this
            raise
        first_sentence = str(error).split(". ")[0]
        advice = "use smaller batches (--batch-size; in training --micro-batch or --grad-checkpointing)"
        return _report(program, f"error: {first_sentence}; {advice}", 2)


@contextlib.contextmanager
def _messages_on_stderr() -> Iterator[None]:
    """The package's own messages, bare. Other libraries have their own handlers, or logging's last resort."""
    logger, handler = logging.getLogger("scm_fast"), logging.StreamHandler()
    handler.setLevel(logging.WARNING if _is_first() else logging.ERROR)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _is_first_of_its_machine() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _report(program: str, message: str, status: int, speaks: bool | None = None) -> int:
    """Print the message. What stops all processes is said by the first; torchrun then ends the others."""
    if not (_is_first() if speaks is None else speaks):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(10)  # SIGTERM ends it
    print(f"{program}: {message}", file=sys.stderr, flush=True)
    return status


def tiles(text: str) -> tuple[int, int]:
    """Read `2x3` as two rows of three tiles."""
    rows, _, columns = text.partition("x")
    try:
        return int(rows), int(columns)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected rows and columns such as 2x2, got {text!r}") from None
