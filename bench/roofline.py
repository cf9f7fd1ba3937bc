"""A roofline model of the whole module's training step: a MODEL, not a measurement.

    python bench/roofline.py
    python bench/roofline.py --gpu H100 --batch 64 --classes 1000 --grid 28x28 --iterations 4 --blocks 4

For every GPU the least time that a forward and backward pass can take, from counted bytes and operations:

  as written   the literal module (`scm_fast.reference`), every torch operation a launch, products in float32
  products     dense chains with everything else fused into their matrix products, in float32, TF32 or bfloat16
               (bfloat16 with matrices of half the size; its accuracy would not do, see scm_fast/ops/README.md)
  fused        the kernels of this package

Every launch takes the longer of (bytes / memory bandwidth) and (operations / peak rate), and launches follow each
other. Operands come from main memory and results go there: no cache carries anything from one launch to the next,
on either side. Within a launch everything is read once. Real kernels reach a part of both peaks.

Two costs are apart, because they rest on an assumption and not on a data sheet: launches (--launch-us each,
hidden while the host runs ahead), and the chain of stencils that an image waits for inside the fused kernels
(--stencil-ns each: four exchanges through shared memory). `fused + chain` lets the activation_diffusion kernels
take as long as their chain where that is longer; the ratio is taken with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from dense_counts import Operation, as_written, products
from kernel_launches import Step, recorded_step
from kernel_traffic import operations, stencils, traffic

from scm_fast.errors import InputError
from scm_fast.files import replace_section
from scm_fast.ops.activation_diffusion import MAX_FUSED_BLOCKS, MAX_FUSED_TOKENS, in_one_launch, plan
from scm_fast.spatial_calibration import expand_iterations

MARK = "A model, not a measurement: nothing here was run on a GPU."


@dataclass(frozen=True)
class Gpu:
    """Peak rates of the vendor's data sheet, without sparsity: bytes and operations a second."""

    name: str
    bandwidth: float
    fp32: float
    tf32: float
    bf16: float
    source: str


GPUS = {
    "A100": Gpu("A100 SXM 80GB", 2.039e12, 19.5e12, 156e12, 312e12, "NVIDIA A100 Tensor Core GPU data sheet"),
    "H100": Gpu("H100 SXM", 3.35e12, 67e12, 494.7e12, 989.4e12, "NVIDIA H100 Tensor Core GPU data sheet"),
    "B200": Gpu("B200 (HGX)", 8e12, 80e12, 1.1e15, 2.25e15, "NVIDIA Blackwell architecture technical brief"),
    "MI300X": Gpu("MI300X", 5.3e12, 163.4e12, 653.7e12, 1307.4e12, "AMD Instinct MI300X data sheet"),
}


@dataclass(frozen=True)
class Way:
    """One way to compute the step: its launches, and the rate at which they compute."""

    name: str
    rate: str
    launches: list[Operation]

    def seconds(self, gpu: Gpu, stencil_seconds: float = 0.0) -> float:
        rate = getattr(gpu, self.rate)
        return sum(
            max(each.bytes / gpu.bandwidth, each.flops / rate, each.stencils * stencil_seconds)
            for each in self.launches
        )


@dataclass(frozen=True)
class Model:
    """A step in all ways; `stored` is what each keeps between the passes, beside the inputs, in bytes."""

    step: Step
    ways: list[Way]
    stored: dict[str, int]


def model(step: Step) -> Model:
    """Count the step in all ways."""
    _check(step)
    written_forward, written_backward, written_stored = as_written(step)
    forward, backward = recorded_step(step)
    fused = [
        Operation(operations(launch), traffic(launch).total, stencils(launch))
        for launch in forward + backward
    ]
    # Saved for the backward pass: gain, f, the edges and the inverse norms.
    tokens = step.batch * step.grid[0] * step.grid[1]
    kept = 4 * tokens * (1 + len(step.iterations) + 2 + 1)
    ways = [Way("as written", "fp32", written_forward + written_backward)]
    for rate, size in (("fp32", 4), ("tf32", 4), ("bf16", 2)):
        parts = products(step, size)
        ways.append(Way(f"products, {rate}", rate, parts[0] + parts[1]))
    ways.append(Way("fused", "fp32", fused))
    return Model(step, ways, {"as written": written_stored, "fused": kept})


def _check(step: Step) -> None:
    tokens, largest = step.grid[0] * step.grid[1], MAX_FUSED_TOKENS[torch.float32]
    if min(step.batch, step.classes, *step.grid) < 1 or min(step.iterations) < 1:
        raise InputError("batch, classes, grid and iterations must be at least 1")
    if tokens > largest or len(step.iterations) > MAX_FUSED_BLOCKS:
        raise InputError(
            f"the fused kernels serve {largest} tokens and {MAX_FUSED_BLOCKS} blocks at most, "
            f"got {tokens} and {len(step.iterations)}"
        )
    if not in_one_launch(plan(step.settings, tokens, torch.float32)):
        raise InputError(
            f"p = {max(step.iterations)} runs on dense matrices at {tokens} tokens: nothing is fused"
        )


def tables(found: Model, gpus: Sequence[Gpu], launch_us: float, stencil_ns: float) -> str:
    """Markdown: the counts, and the bound on every GPU."""
    step = found.step
    dtype = str(step.dtype).removeprefix("torch.")
    lines = [
        f"**{MARK}** Forward and backward, B = {step.batch}, C = {step.classes}, "
        f"{step.grid[0]} x {step.grid[1]} tokens, p = {', '.join(map(str, step.iterations))}, S in {dtype}"
        f"{', X_0 detached' if step.detach_init else ''}.",
        "",
        f"| counted | GFLOP | GB moved | launches | launches x {launch_us:g} us (assumed) | stored for backward |",
        "|---" * 6 + "|",
    ]
    for way in found.ways:
        flops, moved = (sum(getattr(each, key) for each in way.launches) for key in ("flops", "bytes"))
        stored = f"{found.stored[way.name] / 1e6:.1f} MB" if way.name in found.stored else ""
        count = len(way.launches)
        overhead = f"{count * launch_us / 1e3:.3f} ms"
        lines.append(
            f"| {way.name} | {flops / 1e9:.2f} | {moved / 1e9:.3f} | {count} | {overhead} | {stored} |"
        )
    header = " | ".join(way.name for way in found.ways)
    lines += [
        "",
        f"| bound in ms (model) | {header} | fused + chain | products, tf32 / (fused + chain) |",
        "|---" * (3 + len(found.ways)) + "|",
    ]
    fused = found.ways[-1]
    for gpu in gpus:
        times = {way.name: way.seconds(gpu) * 1e3 for way in found.ways}
        chained = fused.seconds(gpu, stencil_ns * 1e-9) * 1e3
        cells = " | ".join(f"{time:.3f}" for time in (*times.values(), chained))
        lines.append(f"| {gpu.name} | {cells} | {times['products, tf32'] / chained:.1f}x |")
    chain = sum(each.stencils for each in fused.launches)
    lines += [
        "",
        f"The chain: {chain} stencils that an image waits for, one after the other, at an assumed "
        f"{stencil_ns:g} ns each: {chain * stencil_ns / 1e6:.3f} ms whatever the bandwidth. Images overlap.",
    ]
    return "\n".join(lines)


def sources(gpus: Sequence[Gpu]) -> str:
    lines = ["| GPU | TB/s | fp32 TFLOP/s | tf32 | bf16 | source |", "|---" * 6 + "|"]
    for gpu in gpus:
        rates = " | ".join(f"{rate / 1e12:g}" for rate in (gpu.bandwidth, gpu.fp32, gpu.tf32, gpu.bf16))
        lines.append(f"| {gpu.name} | {rates} | {gpu.source} |")
    return "\n".join(lines)


def _grid(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    return int(height), int(width)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", action="append", choices=GPUS, help="may be repeated; all by default")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--grid", type=_grid, default=(14, 14), metavar="HxW")
    parser.add_argument(
        "--iterations", type=int, nargs="+", default=[4], metavar="P", help="one, or one per block"
    )
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="of S")
    parser.add_argument("--detach-init", action="store_true", help="X_0 is a constant, as in `official`")
    parser.add_argument("--launch-us", type=float, default=4.0, help="assumed cost of a launch")
    parser.add_argument("--stencil-ns", type=float, default=200.0, help="assumed latency of a stencil")
    parser.add_argument("--out", type=Path, metavar="FILE", help="markdown file whose roofline is replaced")
    args = parser.parse_args(argv)
    gpus = [GPUS[name] for name in args.gpu or GPUS]
    try:
        counts = args.iterations[0] if len(args.iterations) == 1 else args.iterations
        iterations = expand_iterations(counts, args.blocks)
        dtype = getattr(torch, args.dtype)
        step = Step(args.batch, args.classes, args.grid, iterations, dtype, detach_init=args.detach_init)
        text = tables(model(step), gpus, args.launch_us, args.stencil_ns) + "\n\n" + sources(gpus)
        if args.out:
            replace_section(args.out, "roofline", text)
    except InputError as error:
        print(f"roofline: error: {error}", file=sys.stderr)
        return 2
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
