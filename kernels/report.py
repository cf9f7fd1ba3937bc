"""What the kernels cost on real GPUs, without one: `python -m scm_fast.kernels.report`.

The launchers are called on small tensors with recording kernels in place of the real ones, so that exactly what
would be launched (arguments, constants, warps) is compiled ahead of time for every target. Reported are
registers a thread, bytes of spilled registers and shared memory. Nothing is run, nothing is timed.

The interpreter replaces the compiler, so this needs a process without TRITON_INTERPRET=1.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

# Target and the shared memory that one program may have there, in bytes.
TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), 163 * 1024),
    "sm_90": (GPUTarget("cuda", 90, 32), 227 * 1024),
    "sm_100": (GPUTarget("cuda", 100, 32), 227 * 1024),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 64 * 1024),
}
OPS = ("edge_similarity", "pooling", "laplacian", "newton_schulz", "calibration")
_OPTIONS = ("num_warps", "num_stages")
_TYPE_NAMES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
}


@dataclass
class Launch:
    """One recorded kernel launch."""

    kernel: JITFunction
    arguments: dict[str, Any]
    options: dict[str, int]


@dataclass
class Resources:
    registers: int
    spilled: int
    shared: int


class _Recorder:
    """Stands in for a kernel and notes how it is launched."""

    def __init__(self, kernel: JITFunction, launches: list[Launch]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def record(*args: Any, **kwargs: Any) -> None:
            arguments = dict(zip(self.kernel.arg_names, args, strict=False))
            arguments.update({k: v for k, v in kwargs.items() if k not in _OPTIONS})
            options = {k: v for k, v in kwargs.items() if k in _OPTIONS}
            self.launches.append(Launch(self.kernel, arguments, options))

        return record


@contextlib.contextmanager
def recorded_launches() -> Iterator[list[Launch]]:
    """Within it, launches of this package's kernels are recorded in the list and not carried out."""
    launches: list[Launch] = []
    replaced = []
    for op in OPS:
        module = importlib.import_module(f"{__package__}.{op}")
        for name, value in list(vars(module).items()):
            if name.endswith("_kernel"):
                replaced.append((module, name, value))
                setattr(module, name, _Recorder(value, launches))
    try:
        yield launches
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)


def _source(launch: Launch) -> ASTSource:
    """The kernel specialised as the launcher would: 1 and None are constants, aligned arguments are marked."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list] = {}
    for index, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[parameter.name], aligned = _TYPE_NAMES[value.dtype], True
        else:
            signature[parameter.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            aligned = value % 16 == 0
        if aligned:
            attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(launch.kernel, signature=signature, constexprs=constants, attrs=attributes)


@contextlib.contextmanager
def _captured_stdout() -> Iterator[list[str]]:
    """What the process, its children included, writes to standard output."""
    text: list[str] = []
    sys.stdout.flush()
    saved = os.dup(1)
    with tempfile.TemporaryFile("w+") as file:
        os.dup2(file.fileno(), 1)
        try:
            yield text
        finally:
            sys.stdout.flush()
            os.dup2(saved, 1)
            os.close(saved)
            file.seek(0)
            text.append(file.read())


def _number(pattern: str, text: str) -> int:
    found = re.findall(pattern, text)
    if not found:
        raise RuntimeError(f"the compiler's output has no {pattern!r}")
    return max(int(number) for number in found)


def compile_launch(launch: Launch, target: GPUTarget) -> Resources:
    """Compile for `target` and read the resources back."""
    triton.knobs.nvidia.dump_ptxas_log = True
    triton.knobs.compilation.always_compile = True  # the assembler's log is there only on a cache miss
    options = {**launch.options, "num_warps": min(launch.options["num_warps"], 1024 // target.warp_size)}
    with _captured_stdout() as text:
        kernel = triton.compile(_source(launch), target=target, options=options)
    if target.backend == "cuda":
        registers, spilled = r"Used (\d+) registers", r"(\d+) bytes spill stores"
        log = text[0]
    else:
        registers, spilled = r"\.vgpr_count:\s*(\d+)", r"\.vgpr_spill_count:\s*(\d+)"
        log = kernel.asm["amdgcn"]
    return Resources(_number(registers, log), _number(spilled, log), kernel.metadata.shared)


def launch_step(
    grid: tuple[int, int],
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    detach_init: bool = False,
    iterations: tuple[int, ...] = (4, 4, 4, 4),
    classes: int = 200,
) -> None:
    """A forward and backward pass of the module."""
    from ..ops.calibration import dense_blocks
    from ..ops.spatial_calibration import spatial_calibration_backward_op, spatial_calibration_op

    S, F = torch.zeros(2, classes, *grid, dtype=dtype), torch.zeros(2, *grid)
    S = S.to(memory_format=torch.channels_last) if channels_last else S
    lam, beta = torch.ones(len(iterations)), torch.ones(len(iterations))
    dense = dense_blocks("auto", iterations, grid[0] * grid[1])
    settings = (iterations, dense, 0.002, detach_init, "triton")
    logits, _, gain, f, edges, inverse_norm = spatial_calibration_op(S, F, lam, beta, *settings)
    saved = (S, F, lam, beta, gain, f, edges, inverse_norm)
    spatial_calibration_backward_op(*saved, torch.zeros_like(logits), None, None, *settings)


def launch_dense(grid: tuple[int, int], detach_init: bool) -> None:
    """A forward and backward pass of the dense path: Laplacian, X_p F, and X_p itself."""
    from ..ops import laplacian, newton_schulz

    N = grid[0] * grid[1]
    edges, lam = torch.zeros(2, 2, *grid), torch.ones(())
    L = laplacian.laplacian_op(edges, lam, "triton")
    laplacian.laplacian_backward_op(L, edges, lam, "triton")
    F = torch.zeros(2, N)
    arguments = (2, 0.002, detach_init)
    out, iterates = newton_schulz.newton_schulz_apply_op(L, F, *arguments, True, "triton")
    newton_schulz.newton_schulz_apply_backward_op(out, L, F, iterates, *arguments, "triton")
    X, iterates = newton_schulz.newton_schulz_op(L, *arguments, True, "triton")
    newton_schulz.newton_schulz_backward_op(X, L, iterates, *arguments, "triton")


CASES: dict[str, Callable[[], None]] = {
    "14x14 fp32": lambda: launch_step((14, 14)),
    "14x14 fp32 detached": lambda: launch_step((14, 14), detach_init=True),
    "14x14 fp32 official": lambda: launch_step((14, 14), detach_init=True, iterations=(16, 4, 4, 4)),
    "14x14 bf16 channels-last": lambda: launch_step((14, 14), torch.bfloat16, channels_last=True),
    "14x14 fp64": lambda: launch_step((14, 14), torch.float64),
    "7x7 fp16": lambda: launch_step((7, 7), torch.float16),
    "5x1 fp32, one class and block": lambda: launch_step((5, 1), classes=1, iterations=(4,)),
    "28x28 fp32": lambda: launch_step((28, 28)),
    "37x37 fp32": lambda: launch_step((37, 37)),
    "64x64 fp32": lambda: launch_step((64, 64)),
    "14x14 dense": lambda: launch_dense((14, 14), detach_init=False),
    "14x14 dense detached": lambda: launch_dense((14, 14), detach_init=True),
}


def report(targets: list[str], cases: list[str]) -> Iterator[tuple[str, str, Launch, str, Resources]]:
    """(case, kernel, launch, target, resources) of every distinct kernel of every case."""
    seen: set[str] = set()
    for case in cases:
        with recorded_launches() as launches:
            CASES[case]()
        for launch in launches:
            source = _source(launch)
            identity = f"{source.hash()}{launch.options}"
            if identity in seen:
                continue
            seen.add(identity)
            for target in targets:
                resources = compile_launch(launch, TARGETS[target][0])
                yield case, launch.kernel.__name__.removesuffix("_kernel"), launch, target, resources


def main() -> None:
    header = "| case | kernel | warps | target | registers | spilled | shared |"
    print(header, "|---" * 7 + "|", sep="\n")
    for case, name, launch, target, r in report(list(TARGETS), list(CASES)):
        print(
            f"| {case} | `{name}` | {launch.options['num_warps']} | {target} "
            f"| {r.registers} | {r.spilled} B | {r.shared / 1024:.1f} KB |",
            flush=True,
        )


if __name__ == "__main__":
    main()
