"""The roofline model's counts against torch's own counter, autograd, and hand-made sums."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("triton")

from dense_counts import Operation, _Counter, as_written, products
from kernel_launches import Step
from kernel_report import traffic_table
from roofline import GPUS, MARK, Gpu, Way, main, model, sources, tables

from scm_fast import SpatialCalibration
from scm_fast.errors import InputError
from scm_fast.files import replace_section

ROOT = Path(__file__).parents[1]


def flops(operations: list[Operation]) -> int:
    return sum(operation.flops for operation in operations)


@pytest.mark.parametrize("detach_init", [False, True], ids=["true-gradient", "detached"])
@pytest.mark.parametrize("iterations", [(4, 4, 4, 4), (3, 1)], ids=str)
def test_dense_operations_and_memory_are_those_of_the_reference(iterations, detach_init):
    step = Step(2, 20, (5, 6), iterations, detach_init=detach_init)
    scm = SpatialCalibration(len(iterations), iterations, detach_init=detach_init, backend="reference")
    S, F = torch.randn(2, 20, 5, 6, requires_grad=True), torch.rand(2, 5, 6, requires_grad=True)
    stored = {}

    def keep(tensor):
        stored[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with (
        FlopCounterMode(display=False) as forward,
        torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x),
    ):
        logits = scm(S, F).logits
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    counted = [forward.get_total_flops(), backward.get_total_flops()]
    assert [flops(part) for part in products(step)] == counted
    *written, kept = as_written(step)
    assert [flops(part) for part in written] == counted
    inputs = {x.untyped_storage()._cdata for x in (S, F, scm.lam, scm.beta)}
    assert kept == sum(storage.nbytes() for key, storage in stored.items() if key not in inputs)


def test_bytes_of_torch_operations():
    x = torch.ones(6, 4)
    with _Counter() as counter:
        x.t()[1:].unsqueeze(0)  # views
        x + 1
        x + x
        x + x[:1]
        x @ x.t()
        torch.empty(5)
    assert counter.operations == [
        Operation(0, 2 * 96),
        Operation(0, 2 * 96),
        Operation(0, 2 * 96),  # the row is part of x
        Operation(2 * 6 * 4 * 6, 96 + 144),
    ]


def test_fused_bytes_by_hand():
    B, C, N, L, edges = 3, 20, 7 * 13, 2, 7 * 12 + 6 * 13
    S, lanes = B * C * N, 128
    per_kernel = [
        S + 3 * B * N,  # S -> edges, inverse norms
        B * N * (1 + 2) + 2 * L + B * N * (2 + L) + B * lanes * 5,  # F, edges -> attention, gain, f
        S + B * N + B * C,  # S, gain -> logits
        S + B * C + B * N,  # S, dlogits -> dgain
        B * N * (1 + 2 + L + 1) + 2 * L + B * N * 3 + 2 * B * L + B * lanes * (10 + L + 2 * 7),
        S + 2 * B * edges + 2 * B * N + B * C + 2 * B * L + S + 2 * L,  # S, dedges, gain, dlogits -> dS
    ]
    found = model(Step(B, C, (7, 13), (3, 1))).ways[-1]
    assert [launch.bytes for launch in found.launches] == [4 * elements for elements in per_kernel]


def test_bound_is_the_longer_of_both_times():
    gpu = Gpu("test", bandwidth=10.0, fp32=100.0, tf32=1000.0, bf16=2000.0, source="")
    launches = [Operation(flops=500, bytes=20), Operation(flops=0, bytes=30), Operation(100, 10, stencils=8)]
    assert Way("", "fp32", launches).seconds(gpu) == 5 + 3 + 1
    assert Way("", "tf32", launches).seconds(gpu) == 2 + 3 + 1
    assert Way("", "tf32", launches).seconds(gpu, stencil_seconds=0.5) == 2 + 3 + 4


def test_every_output_says_that_it_is_a_model(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- roofline -->\nold\n<!-- /roofline -->\nafter\n")
    command = [sys.executable, str(ROOT / "bench" / "roofline.py"), "--gpu", "H100", "--gpu", "MI300X"]
    command += ["--batch", "2", "--classes", "5", "--grid", "3x4", "--blocks", "1", "--out", str(page)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    written = page.read_text()
    assert written == f"before\n<!-- roofline -->\n{run.stdout}<!-- /roofline -->\nafter\n"
    assert MARK in written
    assert "| H100 SXM |" in written
    assert "A100" not in written


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--iterations", "10"], "p = 10 runs on dense matrices at 196 tokens"),
        (["--grid", "65x65"], "4096 tokens and 15 blocks at most, got 4225 and 4"),
        (["--iterations", "4", "4"], "one per block: got 2 for num_blocks=4"),
        (["--batch", "0"], "must be at least 1"),
    ],
)
def test_what_the_model_does_not_cover(capsys, arguments, message):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_sections_that_are_not_there(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- roofline -->\n")
    with pytest.raises(InputError, match=r"page.md has no section between <!-- roofline --> and"):
        replace_section(page, "roofline", "text")
    assert page.read_text() == "<!-- roofline -->\n"


def test_documentation_is_up_to_date():
    """docs/tables/kernels.md holds what `kernel_report.py --only traffic` and `roofline.py` print."""
    page = (ROOT / "docs" / "tables" / "kernels.md").read_text()
    assert traffic_table() in page
    gpus = list(GPUS.values())
    assert tables(model(Step(128)), gpus, 4.0, 200.0) + "\n\n" + sources(gpus) in page
