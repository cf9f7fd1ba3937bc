"""The kernels' stated traffic and work, against every address and operation of the interpreter."""

from collections import defaultdict

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from kernel_launches import Launch, Step, launch_cls_row, launch_dense, recorded_launches, recorded_step
from kernel_traffic import NOTHING, operations, stencils, traffic
from triton.runtime import interpreter

from scm_fast.backends import interpreting

pytestmark = pytest.mark.skipif(not interpreting(), reason="only the interpreter shows its addresses")

ARITHMETIC = (np.add, np.subtract, np.multiply, np.divide)


class Observed:
    """The work of a launch: the addresses that it loaded and stored, and its operations on floats."""

    def __init__(self) -> None:
        self.loaded: list[np.ndarray] = []
        self.stored: list[np.ndarray] = []
        self.operations = 0

    def bytes_of(self, launch: Launch) -> tuple[int, int, int]:
        """Distinct bytes read and written, and those of the scratch memory."""
        loaded, stored = (np.unique(np.concatenate(x)) for x in (self.loaded, self.stored))
        read = written = scratch = 0
        seen: set[int] = set()
        for name, tensor in launch.arguments.items():
            if not isinstance(tensor, torch.Tensor) or tensor.data_ptr() in seen:
                continue
            seen.add(tensor.data_ptr())
            extent = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
            low, high = tensor.data_ptr(), tensor.data_ptr() + extent * tensor.element_size()
            counts = [int(((x >= low) & (x < high)).sum()) for x in (loaded, stored)]
            if name == "scratch":
                assert counts[0] <= counts[1], "scratch is read only where it was written"
                scratch += counts[1] * tensor.element_size()
            else:
                read += counts[0] * tensor.element_size()
                written += counts[1] * tensor.element_size()
        return read, written, scratch


@pytest.fixture
def run_observed(monkeypatch):
    """Runs a function in the interpreter, and gives its launches with what each of them did."""

    def run(function) -> list[tuple[Launch, Observed]]:
        found: defaultdict[int, Observed] = defaultdict(Observed)
        builder, reductions = interpreter.InterpreterBuilder, interpreter.ReduceOps
        load, store, binary = builder.create_masked_load, builder.create_masked_store, builder.binary_op
        dot, total = builder.create_dot, reductions.sum

        with recorded_launches(run=True) as launches, monkeypatch.context() as patch:

            def now() -> Observed:
                return found[len(launches) - 1]

            def masked_load(self, pointers, mask, *rest):
                now().loaded.append(pointers.data[mask.data].ravel())
                return load(self, pointers, mask, *rest)

            def masked_store(self, pointers, value, mask, *rest):
                now().stored.append(pointers.data[mask.data].ravel())
                return store(self, pointers, value, mask, *rest)

            def binary_op(self, left, right, function):
                result = binary(self, left, right, function)
                if function in ARITHMETIC and result.data.dtype.kind == "f":
                    now().operations += result.data.size
                return result

            def matrix_product(self, a, b, *rest):
                now().operations += 2 * a.data.size * b.data.shape[1]
                return dot(self, a, b, *rest)

            def reduced_sum(self, given):
                now().operations += given.handle.data.size
                return total(self, given)

            patch.setattr(builder, "create_masked_load", masked_load)
            patch.setattr(builder, "create_masked_store", masked_store)
            patch.setattr(builder, "binary_op", binary_op)
            patch.setattr(builder, "create_dot", matrix_product)
            patch.setattr(reductions, "sum", reduced_sum)
            function()
        return [(launch, found[index]) for index, launch in enumerate(launches)]

    return run


STEPS = {
    "7x13": Step(2, 20, (7, 13), (3, 1)),
    "7x13 bf16 channels-last": Step(2, 20, (7, 13), (2,), torch.bfloat16, channels_last=True),
    "7x13 fp64 detached": Step(1, 5, (7, 13), (2, 0), torch.float64, detach_init=True),
    "5x1, one class": Step(1, 1, (5, 1), (2,)),
    "33x35, not resident": Step(1, 2, (33, 35), (1, 2)),
    "4x4 with a dense block": Step(1, 3, (4, 4), (16, 2)),
}


STEPS_BESIDE = {
    "dense 5x7": lambda: launch_dense((5, 7), False),
    "dense 5x7 detached": lambda: launch_dense((5, 7), True),
    "cls row": lambda: launch_cls_row(2, 3, 11, 20, torch.bfloat16),
}


@pytest.mark.parametrize("case", [*STEPS, *STEPS_BESIDE])
def test_bytes_are_those_of_the_interpreters_addresses(run_observed, case):
    observed = run_observed(STEPS[case].launch if case in STEPS else STEPS_BESIDE[case])
    assert observed
    for launch, seen in observed:
        counted = traffic(launch)
        assert (counted.read, counted.written, counted.scratch) == seen.bytes_of(launch), launch.name


@pytest.mark.parametrize("detach_init", [False, True], ids=["true-gradient", "detached"])
def test_operations_are_those_of_the_interpreter(run_observed, detach_init):
    """16 x 16 tokens fill their lanes; at the rim, lanes without a neighbour compute as well."""
    step = Step(1, 64, (16, 16), (4, 2), detach_init=detach_init)
    observed = run_observed(step.launch)
    observed += run_observed(lambda: launch_dense((8, 8), detach_init))
    observed += run_observed(lambda: launch_cls_row(1, 2, 64, 32, torch.float32))
    for launch, seen in observed:
        if not launch.name.startswith("laplacian"):  # a few operations a token
            assert operations(launch) == pytest.approx(seen.operations, rel=0.15), launch.name


def test_a_step_reads_S_four_times_and_writes_dS_once():
    step = Step(8, 200, (14, 14))
    forward, backward = recorded_step(step)
    assert (len(forward), len(backward)) == (3, 3)
    total = sum(map(traffic, forward + backward), NOTHING)
    S = 8 * 200 * 196 * 4
    assert 4 * S < total.read < 4.1 * S
    assert S < total.written < 1.1 * S


def test_chains_of_stencils():
    forward, backward = recorded_step(Step(iterations=(4, 4, 4, 4)))
    assert [stencils(launch) for launch in forward] == [0, 4 * 31, 0]
    assert [stencils(launch) for launch in backward] == [0, 4 * (31 + 31), 0]
