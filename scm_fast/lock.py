"""One command at a time in a folder.

The lock is a file with the process that holds it. A process that was killed leaves it behind. On its own machine
that is recognised at once, by the process's number and the time at which it started; on another one by the time of
the file, which a live process renews.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import NamedTuple

from .errors import InputError

FILE = "run.lock"
RENEWAL = 2.0  # seconds between two renewals
SILENCE = 20.0  # seconds without one after which the process of another machine is dead


class FolderLock:
    """Use it in a `with`, or by `acquire` and `release`.

    what: the folder, as errors call it.
    work: what this process does in it, as the errors of others say: it is "training" here.
    """

    def __init__(self, folder: Path, what: str = "the run folder", work: str = "training") -> None:
        self._folder, self._file = folder, folder / FILE
        self._what, self._work = what, work
        self._made_folder = False
        self._descriptor = -1
        self._released = threading.Event()

    def __enter__(self) -> FolderLock:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Raise an InputError that names the other process if there is one."""
        self._made_folder = not self._folder.exists()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            while not self._create():
                content = self._read()
                if content is None:  # released at this moment
                    continue
                holder = _parse(content)
                if holder is None or (_lives(holder) if _is_here(holder) else self._is_renewed(holder)):
                    raise InputError(self._refusal(holder))
                self._remove_stale(content)
        except OSError as error:
            raise InputError(f"{self._folder}: {self._what} cannot be written ({error.strerror})") from error

    def release(self) -> None:
        self._released.set()
        with contextlib.suppress(OSError):  # somebody removed it
            if self._file.stat().st_ino == os.fstat(self._descriptor).st_ino:
                self._file.unlink()
        os.close(self._descriptor)
        if self._made_folder:
            with contextlib.suppress(OSError):  # it is not empty: the run has begun
                self._folder.rmdir()

    def _create(self) -> bool:
        """False if the file is there."""
        me = Holder(os.getpid(), socket.gethostname(), _start_time(os.getpid()), self._work)
        try:
            self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return False
        os.write(self._descriptor, json.dumps(me._asdict()).encode())
        os.fsync(self._descriptor)  # for other machines
        threading.Thread(target=self._renew, args=(os.dup(self._descriptor),), daemon=True).start()
        return True

    def _renew(self, descriptor: int) -> None:
        """Renew through the descriptor: whatever has taken the file's place is not renewed."""
        while not self._released.wait(RENEWAL):
            with contextlib.suppress(OSError):  # a shared disk may be away for a moment
                os.utime(descriptor)
        os.close(descriptor)

    def _is_renewed(self, holder: Holder) -> bool:
        """Watch the file for a while. Clocks of machines differ, so what counts is that its time changes."""
        logging.getLogger("scm_fast").warning(
            "%s: waiting up to %g s for a sign of life of process %d on %s",
            self._folder, SILENCE, holder.process, holder.host,
        )  # fmt: skip
        first, end = self._time(), time.monotonic() + SILENCE
        while time.monotonic() < end:
            time.sleep(RENEWAL / 4)
            now = self._time()
            if now is None:
                return False  # released
            if now != first:
                return True
        return False

    def _time(self) -> int | None:
        try:
            with (
                self._file.open() as file
            ):  # opened, a file of a network disk is as it is there, not as it was
                return os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None

    def _read(self) -> str | None:
        try:
            return self._file.read_text()
        except FileNotFoundError:
            return None

    def _remove_stale(self, content: str) -> None:
        """Move the file away before it is deleted: by then, another process may have put its own in its place."""
        aside = self._file.with_name(f"{FILE}.{os.getpid()}")
        try:
            self._file.rename(aside)
        except FileNotFoundError:
            return
        if aside.read_text() != content:
            with contextlib.suppress(FileExistsError):
                os.link(aside, self._file)
        aside.unlink()

    def _refusal(self, holder: Holder | None) -> str:
        if holder is None:
            return (
                f"{self._folder}: another process begins its work here; if there is none, remove {self._file}"
            )
        return (
            f"{self._folder}: process {holder.process} on {holder.host} is {holder.work} here; wait for it, or "
            "give --out another folder"
        )


class Holder(NamedTuple):
    """The process that has a lock."""

    process: int
    host: str
    started: str | None
    work: str = "training"


def _parse(content: str) -> Holder | None:
    """None for a file that is half written, or somebody else's."""
    try:
        holder = Holder(**json.loads(content))
        return holder if isinstance(holder.process, int) else None
    except (ValueError, TypeError):
        return None


def _is_here(holder: Holder) -> bool:
    return holder.host == socket.gethostname()


def _lives(holder: Holder) -> bool:
    """Tell whether the process of this machine that holds a lock is alive."""
    if holder.process == os.getpid():
        return False  # an earlier one of this number, or this one's run that was given up
    try:
        os.kill(holder.process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return holder.started is None or holder.started == _start_time(holder.process)


def _start_time(process: int) -> str | None:
    """Tells a process from a later one of the same number; None where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name in parentheses may have spaces; the start is the 20th word after it.
        ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
    return f"{boot} {ticks}"
