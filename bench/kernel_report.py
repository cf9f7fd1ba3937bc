"""Report what the kernels cost on real GPUs, without one: `python bench/kernel_report.py`.

The launchers are called with recorders in place of the kernels, so that exactly what would be launched
(arguments, constants, warps) is looked at. Three tables:

  traffic     launches of a training step, and the bytes and operations of each, counted (see `kernel_traffic`)
  counts      what the compiled kernels do in a training step, counted in an emulator (see `kernel_counts`)
  progress    these counts beside those of the first kernels
  resources   every kernel compiled ahead of time for every target: registers per thread, spilled registers
              (bytes; on AMD their number), shared memory; this takes some minutes

Nothing runs on a GPU, nothing is timed. `--out docs/tables/kernels.md` replaces the tables in that file.
The interpreter replaces the compiler, so counts and resources need a process without TRITON_INTERPRET=1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from kernel_counts import comparison_table, counted_step, counts_table, numbers, read_numbers
from kernel_launches import Launch, Step, launch_cls_row, launch_dense, recorded_launches, recorded_step
from kernel_traffic import NOTHING, Traffic, operations, traffic
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language import target_info

from scm_fast.files import replace_section
from scm_fast.kernels import activation_diffusion

# Target and the shared memory that one program may have there, in bytes.
TARGETS = {
    "sm_75": (GPUTarget("cuda", 75, 32), 64 * 1024),
    "sm_80": (GPUTarget("cuda", 80, 32), 163 * 1024),
    "sm_86": (GPUTarget("cuda", 86, 32), 99 * 1024),
    "sm_89": (GPUTarget("cuda", 89, 32), 99 * 1024),
    "sm_90": (GPUTarget("cuda", 90, 32), 227 * 1024),
    "sm_100": (GPUTarget("cuda", 100, 32), 227 * 1024),
    "sm_120": (GPUTarget("cuda", 120, 32), 99 * 1024),
    "gfx90a": (GPUTarget("hip", "gfx90a", 64), 64 * 1024),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 64 * 1024),
    "gfx950": (GPUTarget("hip", "gfx950", 64), 160 * 1024),
    "gfx1100": (GPUTarget("hip", "gfx1100", 32), 64 * 1024),
}
_TYPE_NAMES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
}


@dataclass
class Resources:
    registers: int
    spilled: int
    shared: int


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
            aligned = value % 16 == 0 and not parameter.do_not_specialize_on_alignment
        if aligned:
            attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(launch.kernel, signature=signature, constexprs=constants, attrs=attributes)


@contextlib.contextmanager
def _captured_stdout() -> Iterator[list[str]]:
    """Collect what the process, its children included, writes to standard output."""
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


def _targeting(target: GPUTarget) -> contextlib.AbstractContextManager:
    """Tell kernels that ask for the target, which Triton takes from the GPU at hand, this one."""

    def current_target() -> GPUTarget:
        return target

    current_target.__triton_builtin__ = True  # type: ignore[attr-defined]
    return mock.patch.object(target_info, "current_target", current_target)


def _number(pattern: str, text: str) -> int:
    found = re.findall(pattern, text)
    if not found:
        raise RuntimeError(f"the compiler's output has no {pattern!r}")
    return max(int(number) for number in found)


def compile_launch(launch: Launch, target: GPUTarget) -> Resources:
    """Compile for `target` and read the resources back."""
    triton.knobs.nvidia.dump_ptxas_log = True
    triton.knobs.compilation.always_compile = True  # the assembler's log is there only on a cache miss
    with _captured_stdout() as text, _targeting(target):
        kernel = triton.compile(_source(launch), target=target, options=launch.options)
    if target.backend == "cuda":
        registers, spilled = r"Used (\d+) registers", r"(\d+) bytes spill stores"
        log = text[0]
    else:
        # Of vector and scalar registers, the larger number of spilled ones.
        registers, spilled = r"\.vgpr_count:\s*(\d+)", r"\.[vs]gpr_spill_count:\s*(\d+)"
        log = kernel.asm["amdgcn"]
    return Resources(_number(registers, log), _number(spilled, log), kernel.metadata.shared)


CASES: dict[str, Callable[[], None]] = {
    "14x14 fp32": Step().launch,
    "14x14 fp32 detached": Step(detach_init=True).launch,
    "14x14 fp32 official": Step(detach_init=True, iterations=(16, 4, 4, 4)).launch,
    "14x14 bf16 channels-last": Step(dtype=torch.bfloat16, channels_last=True).launch,
    "14x14 fp64": Step(dtype=torch.float64).launch,
    "7x7 fp16": Step(grid=(7, 7), dtype=torch.float16).launch,
    "5x1 fp32, one class and block": Step(grid=(5, 1), classes=1, iterations=(4,)).launch,
    "28x28 fp32": Step(grid=(28, 28)).launch,
    "37x37 fp32": Step(grid=(37, 37)).launch,
    "64x64 fp32": Step(grid=(64, 64)).launch,
    "14x14 dense": lambda: launch_dense((14, 14), detach_init=False),
    "14x14 dense detached": lambda: launch_dense((14, 14), detach_init=True),
    "197 tokens, 6 heads bf16": lambda: launch_cls_row(2, 6, 197, 64, torch.bfloat16),
    "1370 tokens, 12 heads fp32": lambda: launch_cls_row(2, 12, 1370, 64, torch.float32),
}

# Training steps whose traffic is listed: CUB and ILSVRC classes, and a larger grid.
STEPS = {
    "B = 128, C = 200, 14x14, fp32": Step(128),
    "B = 128, C = 200, 14x14, bf16 channels-last": Step(128, dtype=torch.bfloat16, channels_last=True),
    "B = 128, C = 1000, 14x14, fp32": Step(128, classes=1000),
    "B = 32, C = 200, 28x28, fp32": Step(32, grid=(28, 28)),
    "B = 8, C = 200, 64x64, fp32": Step(8, grid=(64, 64)),
}


# Training steps whose instructions are counted: of two images, because every image is the same work.
COUNTED_STEPS = {
    "C = 200, 14x14, fp32": Step(),
    "C = 200, 14x14, bf16 channels-last": Step(dtype=torch.bfloat16, channels_last=True),
    "C = 1000, 14x14, fp32": Step(classes=1000),
    "C = 200, 28x28, fp32": Step(grid=(28, 28)),
}


FIRST_COUNTS = Path(__file__).parent / "kernel_counts_first.csv"


def report(targets: list[str], cases: list[str]) -> Iterator[tuple[str, str, Launch, str, Resources]]:
    """(case, kernel, launch, target, resources) of every distinct kernel of every case."""
    seen: set[str] = set()
    for case in cases:
        launches = {size: _launches_on_warps_of(size, case) for size in (32, 64)}
        for index, launch in enumerate(launches[32]):
            identity = f"{_source(launch).hash()}{launch.options}"
            if identity in seen:
                continue
            seen.add(identity)
            for name in targets:
                target = TARGETS[name][0]
                resources = compile_launch(launches[target.warp_size][index], target)
                yield case, launch.name, launch, name, resources


def _launches_on_warps_of(size: int, case: str) -> list[Launch]:
    """Return what would be launched on a device whose warps have so many lanes."""
    with (
        mock.patch.object(activation_diffusion, "warp_size", return_value=size),
        recorded_launches() as launches,
    ):
        CASES[case]()
    return launches


def traffic_table() -> str:
    """Markdown: the launches of every step in STEPS, four blocks of p = 4."""
    lines = []
    for name, step in STEPS.items():
        forward, backward = recorded_step(step)
        rows = [("forward", launch) for launch in forward] + [("backward", launch) for launch in backward]
        moved = [traffic(launch) for _, launch in rows]
        work = [operations(launch) for _, launch in rows]
        total = sum(moved, NOTHING)
        S = rows[0][1].arguments["S"].nbytes
        lines += [
            f"**{name}**: {len(forward)} launches forward and {len(backward)} backward; "
            f"S is {S / 1e6:.1f} MB, and {total.total / S:.2f} times as much is moved.",
            "",
            "| pass | kernel | programs | read | written | scratch | GFLOP | FLOP/byte |",
            "|---" * 8 + "|",
        ]
        for (part, launch), bytes_moved, flops in zip(rows, moved, work, strict=True):
            cells = _traffic_cells(bytes_moved, flops)
            lines.append(f"| {part} | `{launch.name}` | {launch.programs} | {cells} |")
        lines += [f"| both | total | | {_traffic_cells(total, sum(work))} |", ""]
    return "\n".join(lines[:-1])


def _traffic_cells(moved: Traffic, work: int) -> str:
    sizes = " | ".join(f"{size / 1e6:.2f} MB" for size in (moved.read, moved.written, moved.scratch))
    return f"{sizes} | {work / 1e9:.3f} | {work / moved.total:.1f}"


def resource_table(targets: list[str], cases: list[str]) -> Iterator[str]:
    """Markdown, line by line as the compiler goes: registers and spilled ones by target, most shared memory."""
    yield "| case | kernel | warps | shared memory | " + " | ".join(targets) + " |"
    yield "|---" * (4 + len(targets)) + "|"
    rows = report(targets, cases)
    for group in zip(*[rows] * len(targets), strict=True):
        case, name, launch, _, _ = group[0]
        shared = max(resources.shared for *_, resources in group)
        cells = (registers_cell(resources) for *_, resources in group)
        warps = launch.options["num_warps"]
        yield f"| {case} | `{name}` | {warps} | {shared / 1024:.1f} KB | " + " | ".join(cells) + " |"


def registers_cell(resources: Resources) -> str:
    return str(resources.registers) + f" ({resources.spilled} spilled)" * (resources.spilled > 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", choices=("traffic", "counts", "progress", "resources"), help="one of the tables"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="markdown file whose tables are replaced")
    args = parser.parse_args()
    tables = {
        "traffic": lambda: traffic_table().splitlines(),
        "counts": _all_counts,
        "progress": _progress,
        "resources": _all_resources,
    }
    for name in [args.only] if args.only else tables:
        lines = []
        for line in tables[name]():
            print(line, flush=True)
            lines.append(line)
        print()
        if args.out:
            replace_section(args.out, name, "\n".join(lines).strip())


def _all_counts() -> Iterator[str]:
    for name, step in COUNTED_STEPS.items():
        yield from (f"**{name}**", "", *counts_table(counted_step(step, "sm_90")), "")


def _progress() -> Iterator[str]:
    after = numbers(counted_step(Step(), "sm_90"))
    yield from comparison_table(read_numbers(FIRST_COUNTS), after)


def _all_resources() -> Iterator[str]:
    return resource_table(list(TARGETS), list(CASES))


if __name__ == "__main__":
    main()
