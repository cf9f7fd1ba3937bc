"""The job script of docs/training.md on two hosts, one of which is cut off and comes back."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from data_folders import write_cub
from documents import blocks
from network_hosts import Host, two_hosts
from training_runs import CONFIG, assert_same_run

ROOT = Path(__file__).parent.parent
# torchrun's first process is on the host whose name is first in the alphabet: here not on the one that SLURM
# names first, where the hosts meet. So the host that is lost has the process that writes the run folder.
SURVIVOR, LOST = "node9", "node10"
PARTNER_TIMEOUT = 20  # seconds
SLURM = {
    "scontrol": f"echo {SURVIVOR}; echo {LOST}",
    "srun": 'for word; do printf "%s\\0" "$word"; done >"$JOB_FOLDER/command"; env -0 >"$JOB_FOLDER/environment"',
}


class Job:
    """The page's script, started on every host with a process per host and a small run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = write_cub(folder / "CUB")
        (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG | {"partner_timeout": PARTNER_TIMEOUT}))
        for name, text in SLURM.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
        page = (ROOT / "docs" / "training.md").read_text()
        (script,) = [block.text for block in blocks(page, "sh") if "#SBATCH" in block.text]
        environment = os.environ | {
            "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "JOB_FOLDER": str(folder),
            "SLURM_JOB_ID": "1700",
            "SLURM_JOB_NODELIST": "node[9-10]",
            "SLURM_NNODES": "2",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        subprocess.run(["sh", "-c", script], env=environment, check=True)
        self._command = (folder / "command").read_text().split("\0")[:-1]
        self.environment = dict(
            line.split("=", 1) for line in (folder / "environment").read_text().split("\0")[:-1]
        )

    def command(self, run: str, script: str = "train.py", processes: int = 1) -> list[str]:
        words = list(self._command)
        words[words.index("train.py")] = script
        for option, value in (
            ("--nproc-per-node", processes),
            ("--config", self.folder / "config.yaml"),
            ("--data", self.data),
            ("--out", self.folder / run),
        ):
            words[words.index(option) + 1] = str(value)
        return words

    def start(self, host: Host, command: list[str], fault: str = "") -> subprocess.Popen:
        return host.start(command, self.environment | {"FAULT": fault}, self.output(host))

    def output(self, host: Host) -> Path:
        return self.folder / f"{host.name}.txt"


@pytest.fixture
def hosts(tmp_path):
    with two_hosts(SURVIVOR, LOST, tmp_path) as found:
        yield found


def wait_for(what: Callable[[], bool], seconds: float, otherwise: Callable[[], str]) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.1)


def is_stopped(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:  # it has ended
        return False


@pytest.mark.slow
@pytest.mark.timeout(540)
def test_two_hosts_equal_one_and_survive_a_cut(hosts, tmp_path):
    job = Job(tmp_path)
    survivor, lost = hosts

    def said() -> str:
        return "\n".join(f"== {host.name}\n{job.output(host).read_text()}" for host in hosts)

    def finish(*processes: subprocess.Popen) -> None:
        wait_for(lambda: all(process.poll() is not None for process in processes), 150, said)
        assert [process.returncode for process in processes] == [0] * len(processes), said()

    one_host = job.command("one host", processes=2)
    one_host[one_host.index("--nnodes") + 1] = "1"
    finish(job.start(survivor, one_host))
    finish(*(job.start(host, job.command("two hosts")) for host in hosts))
    assert_same_run(tmp_path / "one host", tmp_path / "two hosts")

    # The process that writes stops in the last step, and then its host is gone without a word.
    with_fault = job.command("cut", "tests/train_with_fault.py")
    staying, _ = (job.start(host, with_fault, fault="SIGSTOP:7:0") for host in hosts)
    wait_for(lambda: any(map(is_stopped, lost.processes())), 150, said)
    already_said = len(job.output(survivor).read_text())
    lost.lose_power()
    line = (
        f"process 1 of 2 on {SURVIVOR} lost another one: no answer within {PARTNER_TIMEOUT} s; --resume auto"
    )
    wait_for(lambda: line in job.output(survivor).read_text(), PARTNER_TIMEOUT + 60, said)
    assert "Traceback" not in job.output(survivor).read_text()[already_said:], said()
    lost.cable("up")
    finish(staying, job.start(lost, job.command("cut")))
    assert "resumed" in job.output(lost).read_text()
    assert "after step 6" in job.output(lost).read_text()
    assert_same_run(tmp_path / "two hosts", tmp_path / "cut")
