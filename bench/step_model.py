"""Model how long a training step of the module would take on a GPU: counted work, not a measurement.

    python bench/step_model.py
    python bench/step_model.py --gpu A100 --classes 1000 --grid 28x28
    python bench/step_model.py --measure         on a GPU: its times beside the model's

Every launch takes the longest of

  memory       distinct bytes / bandwidth of main memory; nothing is in a cache when a launch begins
  L2           sectors requested / bandwidth of the second-level cache: as if the first level held nothing
  issue        instructions of all warps, at 70 % of one instruction a cycle and scheduler
  load/store   cycles of the load/store units, bank conflicts and sectors apart included
  rounds       programs that do not fit at once come in rounds, of which each takes one program's critical path

and launches follow each other. Instructions, sectors and conflicts are counted in the emulator (tests/ptx) on two
images, because every image is the same work. The critical path is that of tests/ptx/critical_path.py, with global
memory answering from the second-level cache. Registers are read from the compiler. PTX stands for machine code, for
AMD's GPU as well: there the model is a rough guide. With `--measure`, `triton.testing.do_bench` times every launch.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import triton
from kernel_counts import counted_step
from kernel_launches import Launch, Step, recorded_step
from kernel_report import TARGETS, compile_launch
from kernel_traffic import traffic
from ptx.counts import SECTOR, Counts
from ptx.critical_path import critical_path

from scm_fast.files import replace_section

MARK = "A model, not a measurement: nothing here was run on a GPU."
_ISSUE_SHARE = 0.7  # of the peak: what dependent instructions of several warps reach
_COUNTED_IMAGES = 2


@dataclass(frozen=True)
class Gpu:
    """Limits of a multiprocessor: 32-bit `registers`, `warps` of 32, `programs`, bytes of `shared` memory."""

    name: str
    target: str  # that the kernels are compiled for and counted on
    multiprocessors: int
    clock: float
    memory: float  # bytes a second
    l2: float  # bytes a second
    l2_cycles: int  # until a load is answered
    source: str
    schedulers: int = 4
    registers: int = 65_536
    warps: int = 64
    programs: int = 32
    shared: int = 227 * 1024


GPUS = {
    "H100": Gpu(
        "H100 SXM",
        "sm_90",
        132,
        1.7e9,
        3.35e12,
        5.5e12,
        250,
        "data sheet; L2 as in published microbenchmarks; clock under load assumed",
    ),
    "A100": Gpu(
        "A100 SXM 80GB",
        "sm_80",
        108,
        1.41e9,
        2.039e12,
        4.4e12,
        200,
        "data sheet; L2 as in published microbenchmarks",
        shared=163 * 1024,
    ),
    "MI300X": Gpu(
        "MI300X",
        "sm_90",
        304,
        2.1e9,
        5.3e12,
        17.2e12,
        500,
        "data sheet; Infinity Cache in place of L2, its latency assumed; counts and registers of sm_90",
        warps=64,
        shared=64 * 1024,
    ),
}


@dataclass(frozen=True)
class Work:
    """The work of a launch on the whole batch."""

    name: str
    programs: int
    warps: int  # of a program
    bytes: int
    sectors: int
    instructions: int  # of all warps
    load_store_cycles: int
    path_cycles: int
    registers: int  # of a thread
    shared: int

    def resident(self, gpu: Gpu) -> int:
        """Programs that a multiprocessor runs at once."""
        registers = -(-self.registers // 8) * 8 * 32 * self.warps
        shared = gpu.shared // self.shared if self.shared else gpu.programs
        return max(1, min(gpu.programs, gpu.warps // self.warps, gpu.registers // registers, shared))

    def parts(self, gpu: Gpu) -> dict[str, float]:
        """Microseconds by each limit."""
        rounds = math.ceil(self.programs / (gpu.multiprocessors * self.resident(gpu)))
        seconds = {
            "memory": self.bytes / gpu.memory,
            "L2": self.sectors * SECTOR / gpu.l2,
            "issue": self.instructions / (gpu.multiprocessors * gpu.schedulers * gpu.clock * _ISSUE_SHARE),
            "load/store": self.load_store_cycles / (gpu.multiprocessors * gpu.clock),
            "rounds": rounds * self.path_cycles / gpu.clock,
        }
        return {name: value * 1e6 for name, value in seconds.items()}


def step_work(step: Step, gpu: Gpu) -> list[Work]:
    """The launches of a step, forward and backward."""
    launches = [launch for part in recorded_step(step) for launch in part]
    counted = counted_step(replace(step, batch=_COUNTED_IMAGES), gpu.target)
    found = []
    for launch, emulated in zip(launches, counted, strict=True):
        assert launch.name == emulated.kernel, "other launches on two images"
        assert emulated.counts is not None
        found.append(_work(launch, emulated.counts, step.batch, gpu))
    return found


def _work(launch: Launch, counts: Counts, images: int, gpu: Gpu) -> Work:
    share = images / _COUNTED_IMAGES
    resources = compile_launch(launch, TARGETS[gpu.target][0])
    instructions = counts.instructions_per_warp() * counts.warps * launch.programs
    return Work(
        launch.name,
        launch.programs,
        counts.warps,
        traffic(launch).total,
        round(sum(sectors.requested for sectors in counts.sectors.values()) * share),
        round(instructions),
        round(sum(served.cycles for served in counts.served.values()) * share),
        critical_path(counts, gpu.l2_cycles).cycles,
        resources.registers,
        resources.shared,
    )


def measured(step: Step) -> list[float]:
    """Microseconds of every launch on the GPU of this machine, its caches cold."""
    launches = [launch for part in recorded_step(replace(step, device="cuda")) for launch in part]
    times = []
    for launch in launches:

        def run(launch: Launch = launch) -> None:
            launch.kernel[launch.grid](**launch.arguments, **launch.options)

        times.append(triton.testing.do_bench(run, return_mode="median") * 1e3)
    return times


def table(step: Step, gpu: Gpu, work: Sequence[Work], times: Sequence[float] | None = None) -> list[str]:
    """Markdown: the limits of every launch, the longest of which counts, and the measured time if there is one."""
    dtype = str(step.dtype).removeprefix("torch.")
    layout = "channels-last" if step.channels_last else "contiguous"
    names = list(work[0].parts(gpu))
    columns = ["kernel", *names, "model, us", *(["measured, us"] if times is not None else [])]
    lines = [
        f"**{gpu.name}**, B = {step.batch}, C = {step.classes}, {step.grid[0]}x{step.grid[1]}, {dtype} {layout}",
        "",
        "| " + " | ".join(columns) + " |",
        "|---" * len(columns) + "|",
    ]
    total = 0.0
    for index, each in enumerate(work):
        parts = each.parts(gpu)
        longest = max(parts.values())
        total += longest
        cells = [f"`{each.name}`", *(f"{value:.1f}" for value in parts.values()), f"**{longest:.1f}**"]
        lines.append("| " + " | ".join(cells + _time(times, index)) + " |")
    empty = [""] * len(names)
    whole = [] if times is None else [f"{sum(times):.1f}"]
    lines.append("| " + " | ".join(["step", *empty, f"**{total:.1f}**", *whole]) + " |")
    return lines


def _time(times: Sequence[float] | None, index: int) -> list[str]:
    return [] if times is None else [f"{times[index]:.1f}"]


def sources(gpus: Sequence[Gpu]) -> list[str]:
    lines = ["| GPU | multiprocessors | GHz | TB/s | L2 TB/s | L2 cycles | source |", "|---" * 7 + "|"]
    for gpu in gpus:
        rates = f"{gpu.clock / 1e9:g} | {gpu.memory / 1e12:g} | {gpu.l2 / 1e12:g} | {gpu.l2_cycles}"
        lines.append(f"| {gpu.name} | {gpu.multiprocessors} | {rates} | {gpu.source} |")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", action="append", choices=GPUS, help="may be repeated; all by default")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--classes", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--grid", default="14x14", help="HxW")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--contiguous", action="store_true", help="S as no model makes it, not channels-last")
    parser.add_argument("--measure", action="store_true", help="time every launch on the GPU of this machine")
    parser.add_argument("--out", type=Path, metavar="FILE", help="markdown file whose model is replaced")
    args = parser.parse_args(argv)
    height, width = map(int, args.grid.split("x"))
    gpus = [GPUS[name] for name in args.gpu or GPUS]
    lines = [] if args.measure else [f"**{MARK}**", ""]
    for classes in args.classes:
        dtype = getattr(torch, args.dtype)
        step = Step(args.batch, classes, (height, width), dtype=dtype, channels_last=not args.contiguous)
        times = measured(step) if args.measure else None
        for gpu in gpus:
            lines += [*table(step, gpu, step_work(step, gpu), times), ""]
    lines += sources(gpus)
    print(*lines, sep="\n")
    if args.out:
        replace_section(args.out, "model", "\n".join(lines))


if __name__ == "__main__":
    main()
