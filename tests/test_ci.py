"""CI fails when something that it runs fails: its script, the targets of the Makefile, the count of skips."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TARGETS = ("lint", "docs", "test", "slow-test", "bench-smoke", "clean-demo", "demo")


@pytest.fixture
def stand_ins(tmp_path):
    """stand_ins(failing) puts programs on the PATH that note how they are called; those of `failing` fail.

    Both CI's script and the Makefile see them. Gives (the environment, a function that tells the calls)."""
    programs, log = tmp_path / "environment" / "bin", tmp_path / "calls"
    programs.mkdir(parents=True)
    (tmp_path / "environment" / ".installed").touch()

    def write(names, failing):
        for name in names:
            program = programs / name
            program.write_text(
                f'#!/bin/sh\necho "{name} $*" >> "{log}"\n'
                + f'case "{name} $*" in {failing}) exit 7;; esac\n' * bool(failing)
            )
            program.chmod(0o755)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "TMPDIR": str(tmp_path)}, lambda: log.read_text().splitlines()

    return write


@pytest.mark.parametrize("failing", [None, *TARGETS])
def test_ci_runs_every_target_and_fails_with_it(stand_ins, failing):
    outside = ("make", "apt-get", "chromium", "chromedriver", "ip", "python3")
    environment, calls = stand_ins(outside, failing and f'"make {failing} "*')
    done = subprocess.run([ROOT / ".ci/run"], env=environment, capture_output=True, text=True)
    targets = tuple(line.split()[1] for line in calls() if line.startswith("make "))
    if failing is None:
        assert (done.returncode, targets) == (0, TARGETS), done.stderr
    else:
        assert done.returncode == 7
        assert targets == TARGETS[: TARGETS.index(failing) + 1]


def test_ci_fails_when_too_many_tests_are_skipped(stand_ins):
    environment, _ = stand_ins(
        ("make", "apt-get", "chromium", "chromedriver", "ip", "python3"), "*check_skips*"
    )
    assert subprocess.run([ROOT / ".ci/run"], env=environment, capture_output=True).returncode == 7


@pytest.mark.parametrize(
    ("target", "failing"),
    [
        ("test", "pytest"),
        ("slow-test", "pytest -n auto -m slow"),
        ("slow-test", "pytest -n auto -m compiled"),
        ("docs", "mkdocs build --strict"),
        ("lint", "mypy"),
        ("lint", "ruff format"),
        ("lint", "ruff check"),
        ("bench-smoke", "pytest"),
        ("demo", "scm-fast demo"),
    ],
)
def test_a_target_fails_with_each_of_its_programs(stand_ins, tmp_path, target, failing):
    for fails in (False, True):
        environment, calls = stand_ins(
            ("pytest", "ruff", "mypy", "mkdocs", "scm-fast"), f'"{failing}"*' if fails else ""
        )
        # What `make test` was called with would go on to this make.
        variables = [f"VENV={tmp_path / 'environment'}", "PYTEST=-n auto", "RESULTS="]
        command = ["make", "-C", ROOT, target, *variables]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (done.returncode != 0) == fails, done.stderr
        assert any(line.startswith(failing) for line in calls())


def test_the_workflow_runs_that_script():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    job = workflow["jobs"]["all"]
    assert job["steps"][-1] == {"run": ".ci/run"}
    assert not {"if", "continue-on-error"} & job.keys()


def test_a_job_runs_the_oldest_versions():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    job = workflow["jobs"]["oldest"]
    assert job["steps"][-1]["run"].startswith("make oldest-test")
    assert not {"if", "continue-on-error"} & job.keys()


@pytest.mark.parametrize("fails", [False, True])
def test_the_target_of_the_oldest_versions(tmp_path, fails):
    """It runs tests of users' first steps with that environment's own Python, and fails with them."""
    python = tmp_path / "oldest" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho $*\nexit {3 * fails}\n")
    python.chmod(0o755)
    (tmp_path / "oldest" / ".installed").touch()
    command = ["make", "-C", ROOT, "oldest-test", f"OLDEST={tmp_path / 'oldest'}", "PYTEST=", "RESULTS="]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stderr
    for name in ("model", "boxes", "exports", "localizer"):
        assert f"tests/test_{name}.py" in done.stdout


REPORT = """<testsuites><testsuite>
<testcase classname="t" name="a[cpu-1]"/>
<testcase classname="t" name="a[cuda-1]"><skipped message="no GPU in this run">t.py:1: no GPU</skipped></testcase>
%s</testsuite></testsuites>"""
SKIPPED = '<testcase classname="t" name="b%d"><skipped message="%s"/></testcase>\n'


@pytest.mark.parametrize(
    ("count", "reason", "status"),
    [
        (0, "", 0),
        (6, "no GPU", 0),
        (7, "no GPU", 1),
        (1, "SCM_FAST_DATA is not set", 1),
        (1, "chromium and chromedriver are not installed", 1),
        (1, "could not import 'onnx'", 1),
    ],
)
def test_the_budget_of_skips(tmp_path, count, reason, status):
    report = tmp_path / "report.xml"
    report.write_text(REPORT % "".join(SKIPPED % (number, reason) for number in range(count)))
    other = tmp_path / "other.xml"
    other.write_text(REPORT % "")
    command = [sys.executable, ROOT / ".ci/check_skips.py", other, report]
    environment = {**os.environ, "SCM_FAST_DATA": "somewhere"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    assert (reason if count and "onnx" in reason else "skipped:") in done.stdout
