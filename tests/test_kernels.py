"""Costs of the kernels: launches of a training step, and resources on real GPU targets."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from kernel_launches import recorded_launches

from scm_fast import SpatialCalibration
from scm_fast.backends import interpreting

# The interpreter replaces the compiler, so compiling needs processes without it.
BENCH = str(Path(__file__).parents[1] / "bench")
ENVIRONMENT = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": BENCH}

COMPILE = """
import json, sys
import kernel_report
for case, kernel, launch, target, resources in kernel_report.report([sys.argv[1]], list(kernel_report.CASES)):
    limit = kernel_report.TARGETS[target][1]
    cell = kernel_report.registers_cell(resources)
    print(json.dumps([case, kernel, cell, resources.spilled, resources.shared, limit]), flush=True)
"""


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


# What torch does without a launch: memory and views of it.
NO_LAUNCH = re.compile(
    r"aten::(new_)?empty(_like|_strided)?|aten::(as_strided|select|slice|view|unsqueeze|detach)"
)


def launched(function: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return a function's result and all that it would launch: this package's kernels and torch's operations."""
    with (
        recorded_launches() as launches,
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
    ):
        result = function()
    operations = [event.name for event in profile.events() if event.name.startswith("aten::")]
    assert operations  # memory at least, or the profiler saw nothing
    return result, [
        *(launch.name for launch in launches),
        *(name for name in operations if not NO_LAUNCH.fullmatch(name)),
    ]


@pytest.mark.skipif(not interpreting(), reason="a GPU would run what is only recorded here")
@pytest.mark.parametrize("blocks", [1, 4, 15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_three_launches_forward_and_three_backward_and_nothing_else(blocks, dtype):
    scm = SpatialCalibration(blocks, 4, backend="triton")
    S = torch.zeros(2, 200, 14, 14, dtype=dtype, requires_grad=True)
    F = torch.zeros(2, 14, 14, dtype=dtype, requires_grad=True)
    inputs = (S, F, scm.lam, scm.beta)
    out, forward = launched(lambda: scm(S, F))
    dlogits = torch.ones_like(out.logits)
    _, backward = launched(lambda: torch.autograd.grad(out.logits, inputs, dlogits))
    assert forward == ["edge_similarity_forward", "activation_diffusion_forward", "matrix_vector"]
    assert backward == ["matrix_vector", "activation_diffusion_backward", "edge_similarity_backward"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        "sm_75",
        "sm_80",
        "sm_86",
        "sm_89",
        "sm_90",
        "sm_100",
        "sm_120",
        "gfx90a",
        "gfx942",
        "gfx950",
        "gfx1100",
    ],
)
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
        "cls_row_forward",
        "cls_row_backward",
    }
    assert [row for row in rows if row[3] > 0] == []
    assert [row for row in rows if row[4] > row[5]] == []
    assert [row[:3] for row in rows] == documented_registers(target)


def documented_registers(target: str) -> list[list[str]]:
    """Case, kernel and registers of every row of the table in docs/tables/kernels.md."""
    page = (Path(__file__).parents[1] / "docs" / "tables" / "kernels.md").read_text()
    lines = page.split("<!-- resources -->\n")[1].split("\n<!-- /resources -->")[0].splitlines()
    table = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    column = table[0].index(target)
    return [[row[0], row[1], row[column]] for row in table[2:]]


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
