"""What the kernels cost: launches of a training step, and resources on real GPU targets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

# The interpreter replaces the compiler, so compiling needs processes without it.
BENCH = str(Path(__file__).parents[1] / "bench")
ENVIRONMENT = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": BENCH}

LAUNCHES = """
from kernel_launches import Step, recorded_step
for part in recorded_step(Step()):
    print(*(launch.kernel.__name__ for launch in part))
"""

COMPILE = """
import json, sys
import kernel_report
for case, kernel, launch, target, resources in kernel_report.report([sys.argv[1]], list(kernel_report.CASES)):
    limit = kernel_report.TARGETS[target][1]
    print(json.dumps([case, kernel, resources.registers, resources.spilled, resources.shared, limit]), flush=True)
"""


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_three_launches_forward_and_three_backward():
    forward, backward = run(LAUNCHES).splitlines()
    assert forward.split() == [
        "edge_similarity_forward_kernel",
        "activation_diffusion_forward_kernel",
        "matrix_vector_kernel",
    ]
    assert backward.split() == [
        "matrix_vector_kernel",
        "activation_diffusion_backward_kernel",
        "edge_similarity_backward_kernel",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_compiles_without_spills_within_shared_memory(target):
    rows = [json.loads(line) for line in run(COMPILE, target).splitlines()]
    print(*rows, sep="\n")
    assert {row[1] for row in rows} == {
        "edge_similarity_forward",
        "edge_similarity_backward",
        "matrix_vector",
        "activation_diffusion_forward",
        "activation_diffusion_backward",
        "laplacian_forward",
        "laplacian_backward",
        "product",
        "complement_vector",
    }
    assert [row for row in rows if row[3] > 0] == []
    assert [row for row in rows if row[4] > row[5]] == []


@pytest.mark.compiled
def test_counts_of_a_training_step():
    """Every launch is counted; a larger batch is more of the same, but for sums that one program takes along."""
    from kernel_counts import COLUMNS, cells, counted_step
    from kernel_launches import Step

    one, two = (counted_step(Step(batch, 8, (5, 4), (1,)), "sm_90") for batch in (1, 2))
    assert [launched.kernel for launched in one] == [launched.kernel for launched in two]
    for launched, twice in zip(one, two, strict=True):
        assert len(cells(launched)) == len(COLUMNS)
        assert twice.counts.programs == 2 * launched.counts.programs
        if launched.kernel != "edge_similarity_backward":
            assert twice.counts.barriers == 2 * launched.counts.barriers
        for what, sectors in launched.counts.sectors.items():
            assert sectors.used <= sectors.requested <= twice.counts.sectors[what].requested
