"""One op on every backend: what each of them computes, the proof that it is right, and the tasks to time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from measure import NotRun, Task
from torch import Tensor

from scm_fast.backends import interpreting, why_not

MODES = ("forward", "backward", "both")
COMPILED = "compiled reference"
Outputs = Tensor | tuple[Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Implementation:
    """A forward pass, recorded for a backward pass, and the tensors that it is differentiated by."""

    function: Callable[[], Outputs]
    inputs: tuple[Tensor, ...]

    def gradients(self, output: Outputs, doutput: Outputs) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, self.inputs, doutput)

    def task(self, mode: str, doutput: Outputs) -> Task:
        if mode == "forward":
            return Task(lambda _: self.function())
        if mode == "backward":
            return Task(lambda output: self.gradients(output, doutput), prepare=self.function)
        return Task(lambda _: self.gradients(self.function(), doutput))


Implementations = dict[str, Implementation | NotRun]


def shapes(*default: Sequence[object], full: Sequence[Sequence[object]]) -> list:
    """Parameters of a test: those of every run, and those of `--full` only."""
    only_full = [pytest.param(*shape, marks=pytest.mark.full) for shape in full]
    return [pytest.param(*shape) for shape in default] + only_full


def why_not_triton(device: torch.device) -> str:
    """Say why the kernels are not timed on `device`; empty where they are."""
    if interpreting():
        return "the interpreter (TRITON_INTERPRET=1) is never timed"
    return why_not("triton", device)


def fastest_backend(device: torch.device) -> str:
    """The one whose speed is promised."""
    return "torch" if why_not_triton(device) else "triton"


def across_backends(
    make: Callable[[str], Implementation],
    device: torch.device,
    *,
    compiling: bool,
    reference_not_run: str = "",
) -> Implementations:
    """`make(backend)` for each backend that can run, and the reference through torch.compile.

    compiling: whether to compile; it takes minutes for a whole study.
    reference_not_run: why the reference is left out, if it is.
    """
    why_no_triton = why_not_triton(device)
    return {
        "reference": NotRun(reference_not_run) if reference_not_run else make("reference"),
        "torch": make("torch"),
        "triton": NotRun(why_no_triton) if why_no_triton else make("triton"),
        COMPILED: compiled(make, reference_not_run or ("" if compiling else "compiled with --full only")),
    }


def compiled(make: Callable[[str], Implementation], not_run: str = "") -> Implementation | NotRun:
    """The reference through torch.compile, with shapes as constants. It compiles when first called."""
    if not_run:
        return NotRun(not_run)
    torch._dynamo.reset()  # shapes of earlier tests count towards its limit of recompilations
    literal = make("reference")
    return dataclasses.replace(literal, function=torch.compile(literal.function, dynamic=False))


def proven(
    implementations: Implementations,
    doutput: Outputs,
    *,
    tolerance: float = 1e-3,
    compared: int | None = None,
    translate: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] = lambda gradients: gradients,
) -> Implementations:
    """Runs each once: all outputs and gradients must be the reference's, up to `tolerance` of their norm.

    compared: whose gradients are compared: those of the first n inputs, or for -n of all but the last n.
    translate: the reference's gradients to those of the others, where their inputs differ.

    What the machine cannot run (no memory, no compiler) comes back as not run.
    """
    expected: tuple[Tensor, ...] | None = None
    found: Implementations = {}
    for name, implementation in implementations.items():
        found[name] = implementation
        if isinstance(implementation, NotRun):
            continue
        try:
            output = implementation.function()
            gradients = implementation.gradients(output, doutput)
        except torch.OutOfMemoryError:
            found[name] = NotRun("out of memory")
            continue
        except torch._dynamo.exc.TorchDynamoException as error:
            found[name] = NotRun(f"torch.compile failed: {str(error).strip().splitlines()[0]}")
            continue
        literal = name in ("reference", COMPILED)
        outputs = output if isinstance(output, tuple) else (output,)
        results = (*outputs, *(translate(gradients) if literal else gradients)[:compared])
        results = tuple(result.detach() for result in results)
        if name == "reference":
            expected = results
        elif expected is not None:
            assert_same(name, results, expected, tolerance)
    return found


def assert_same(name: str, results: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    """All outputs, then all gradients, by the norm of their difference."""
    for index, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        error = (ours - theirs).norm() / theirs.norm()
        assert error <= tolerance, f"{name}: result {index} differs from the reference by {error:.1e}"


def tasks(implementations: Implementations, mode: str, doutput: Outputs) -> Mapping[str, Task | NotRun]:
    return {
        name: found if isinstance(found, NotRun) else found.task(mode, doutput)
        for name, found in implementations.items()
    }
