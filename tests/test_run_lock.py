"""One command at a time in a run folder."""

import contextlib
import json
import os
import subprocess
import sys

import pytest

from scm_fast import InputError, lock
from scm_fast.cli import main
from scm_fast.lock import FILE, FolderLock
from scm_fast.training.run_folder import RunFolder

HOLD = """
import socket, sys
from pathlib import Path
from scm_fast.lock import FolderLock
host = sys.argv[2] if len(sys.argv) > 2 else socket.gethostname()
socket.gethostname = lambda: host
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holding(folder, *host):
    """A process that holds the lock of a folder, on this machine or as if on another one."""
    command = [sys.executable, "-c", HOLD, str(folder), *host]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def other(tmp_path):
    with holding(tmp_path / "run") as process:
        yield process


@pytest.fixture
def elsewhere(tmp_path):
    with holding(tmp_path / "run", "elsewhere") as process:
        yield process


def test_another_process_is_named(tmp_path, other):
    with pytest.raises(InputError, match=rf"process {other.pid} on .* is training here; wait for it"):
        FolderLock(tmp_path / "run").acquire()
    assert json.loads((tmp_path / "run" / FILE).read_text())["process"] == other.pid


def test_lock_of_a_process_that_was_killed(tmp_path, other):
    other.kill()
    other.wait()
    mine = FolderLock(tmp_path / "run")
    mine.acquire()
    assert json.loads((tmp_path / "run" / FILE).read_text())["process"] == os.getpid()
    mine.release()
    assert os.listdir(tmp_path / "run") == []


def test_a_later_process_of_the_same_number(tmp_path, other):
    """The one that held it is dead, whoever has its number now."""
    file = tmp_path / "run" / FILE
    content = json.loads(file.read_text())
    assert content["started"] is not None
    file.write_text(json.dumps(content | {"started": "another boot 17"}))
    FolderLock(tmp_path / "run").acquire()


def test_live_process_of_another_machine(tmp_path, elsewhere):
    with pytest.raises(InputError, match=rf"process {elsewhere.pid} on elsewhere is training here"):
        FolderLock(tmp_path / "run").acquire()


def test_killed_process_of_another_machine(tmp_path, elsewhere, monkeypatch):
    """A job is requeued on another node after a node has failed."""
    monkeypatch.setattr(lock, "SILENCE", 3 * lock.RENEWAL)
    elsewhere.kill()
    elsewhere.wait()
    FolderLock(tmp_path / "run").acquire()
    assert json.loads((tmp_path / "run" / FILE).read_text())["process"] == os.getpid()


def test_a_lock_that_was_taken_is_left_to_its_new_holder(tmp_path):
    mine = FolderLock(tmp_path)
    mine.acquire()
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).write_text("of another process")
    mine.release()
    assert (tmp_path / FILE).read_text() == "of another process"


def test_half_written_file(tmp_path):
    (tmp_path / FILE).write_text('{"process": 17')
    with pytest.raises(InputError, match=f"remove {tmp_path}/{FILE}"):
        FolderLock(tmp_path).acquire()


def test_a_lock_that_was_replaced_meanwhile_is_put_back(tmp_path):
    mine = FolderLock(tmp_path)
    (tmp_path / FILE).write_text("of a live process")
    mine._remove_stale("of a dead one")
    assert os.listdir(tmp_path) == [FILE]
    assert (tmp_path / FILE).read_text() == "of a live process"


def test_folder_is_left_as_it_was(tmp_path):
    with RunFolder(tmp_path / "new").locked():
        assert (tmp_path / "new" / FILE).is_file()
    assert not (tmp_path / "new").exists()
    with RunFolder(tmp_path / "new").locked():
        (tmp_path / "new" / "log.csv").write_text("a log")
    assert os.listdir(tmp_path / "new") == ["log.csv"]


def test_a_second_training_command_is_refused(tmp_path, other, capsys):
    assert main(["train", "--data", "nowhere", "--out", str(tmp_path / "run"), "--device", "cpu"]) == 2
    assert f"process {other.pid} on " in capsys.readouterr().err
    assert os.listdir(tmp_path / "run") == [FILE]
