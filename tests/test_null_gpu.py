"""Every line that a GPU takes, on a GPU that computes nothing: see null_gpu/. Values are not looked at here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from null_gpu import build

pytestmark = pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())


def run_on_gpu(program: str, *arguments: str, gpus: int = 1) -> dict:
    """What a program of null_gpu/ prints as JSON."""
    environment = {**build.environment(gpus), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"null_gpu.{program}", *arguments]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_counts_of_a_training_step():
    """The forward pass waits for nothing, and the device is met with the kernels of the module."""
    step = run_on_gpu("steps", "deit_tiny_patch16_224", "2", "tscam", "scm")
    for method, parts in step.items():
        for part in ("forward", "backward", "update"):
            assert parts[part]["launches"] > 0
            assert parts[part]["waits"] == {}, f"{method}, {part}"
    assert not any(name.startswith("edge_similarity") for name in step["tscam"]["forward"]["kernels"])
    assert step["scm"]["forward"]["kernels"]["edge_similarity_forward_kernel"] == 1
    assert step["scm"]["backward"]["kernels"]["edge_similarity_backward_kernel"] == 1
