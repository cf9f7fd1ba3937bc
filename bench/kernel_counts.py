"""Count what the compiled kernels do in one training step, in the emulator of tests/ptx. Nothing is timed.

    python bench/kernel_counts.py
    python bench/kernel_counts.py --target sm_80 --grid 28x28 --classes 1000 --channels-last
    python bench/kernel_counts.py --before bench/kernel_counts_first.csv

With `--csv FILE` the counts are written there, and with `--before FILE` of another version they stand beside these.
tests/ptx/README.md says what is counted, tests/ptx/critical_path.py what the critical path assumes. The interpreter
replaces the compiler, so this needs a process without TRITON_INTERPRET=1.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import torch
from kernel_launches import Step
from ptx.critical_path import critical_path
from ptx.driver import TARGETS, Launched, emulated

from scm_fast import SpatialCalibration

_L2_CYCLES = 250
COLUMNS = (
    "kernel",
    "programs x warps",
    "instructions per warp",
    "barriers per program",
    "sectors loaded",
    "stored",
    "bank conflicts",
    "critical path (scratch from L2)",
)


def _train(step: Step, backend: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """logits and dS of random maps, rounded to the step's dtype."""
    generator = torch.Generator().manual_seed(0)
    S = torch.randn(step.batch, step.classes, *step.grid, generator=generator).to(step.dtype).to(dtype)
    S = S.to(memory_format=torch.channels_last) if step.channels_last else S
    F = torch.rand(step.batch, *step.grid, generator=generator)
    scm = SpatialCalibration(
        len(step.iterations), step.iterations, detach_init=step.detach_init, backend=backend
    )
    if dtype == torch.float64:
        scm, F = scm.double(), F.double()
    S.requires_grad_()
    logits = scm(S, F).logits
    logits.square().sum().backward()
    return [x.detach().double() for x in (logits, S.grad)]


def counted_step(step: Step, target: str) -> list[Launched]:
    """The launches of the forward and backward pass, with their counts, after a proof that they are right."""
    with emulated(target, count=True) as emulator:
        found = _train(step, "triton", step.dtype)
    assert emulator.launched, "nothing was emulated: is TRITON_INTERPRET set?"
    bound = 1e-4 if step.dtype == torch.float32 else 2e-2
    for name, actual, exact in zip(
        ("logits", "dS"), found, _train(step, "torch", torch.float64), strict=True
    ):
        error = float((actual - exact).norm() / exact.norm())
        assert error < bound, f"{name} is wrong: relative error {error:.1e}"
    return emulator.launched


def cells(launched: Launched) -> tuple[str, ...]:
    """A row of the table; see COLUMNS."""
    counts = launched.counts
    assert counts is not None
    conflicts = sum(w.conflicts for w in counts.wavefronts.values())
    wavefronts = sum(w.needed for w in counts.wavefronts.values())
    near, far = (critical_path(counts, latency).microseconds for latency in (None, _L2_CYCLES))
    return (
        f"`{launched.kernel}`",
        f"{counts.programs} x {counts.warps}",
        f"{counts.instructions_per_warp():,.0f}",
        f"{counts.barriers_per_program:,.0f}",
        *(f"{s.requested:,} ({s.efficiency:.0%})" for s in (counts.sectors["load"], counts.sectors["store"])),
        f"{conflicts / max(1, wavefronts):.0%}",
        f"{near:.1f} ({far:.1f}) us",
    )


def counts_table(launches: Sequence[Launched]) -> list[str]:
    """Markdown, a row per launch."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(cells(launched) for launched in launches)]
    return ["| " + " | ".join(row) + " |" for row in rows]


# What a faster kernel has less of, or, of the shares, more of.
_NUMBERS = ("instructions per warp", "barriers per program", "sectors loaded, used", "sectors stored, used")


def numbers(launches: Sequence[Launched]) -> list[dict[str, str]]:
    """A row of `_NUMBERS` per launch, named."""
    rows = []
    for launched in launches:
        counts = launched.counts
        assert counts is not None
        shares = (f"{counts.sectors[kind].efficiency:.0%}" for kind in ("load", "store"))
        row = (f"{counts.instructions_per_warp():.0f}", f"{counts.barriers_per_program:.0f}", *shares)
        rows.append({"kernel": launched.kernel, **dict(zip(_NUMBERS, row, strict=True))})
    return rows


def comparison_table(before: list[dict[str, str]], after: list[dict[str, str]]) -> list[str]:
    """Markdown: before -> after, a row per launch."""
    lines = ["| kernel | " + " | ".join(_NUMBERS) + " |", "|---" * (1 + len(_NUMBERS)) + "|"]
    for old, new in zip(before, after, strict=True):
        assert old["kernel"] == new["kernel"], "other launches"
        pairs = (f"{old[name]} → {new[name]}" for name in _NUMBERS)
        lines.append(f"| `{new['kernel']}` | " + " | ".join(pairs) + " |")
    return lines


def read_numbers(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=list(TARGETS), default="sm_90")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--grid", default="14x14", help="HxW")
    parser.add_argument("--iterations", type=int, nargs="+", default=[4, 4, 4, 4], help="one per block")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the counts there")
    parser.add_argument(
        "--before", type=Path, metavar="FILE", help="counts of another version to stand beside"
    )
    args = parser.parse_args()
    height, width = map(int, args.grid.split("x"))
    dtype = getattr(torch, args.dtype)
    step = Step(args.batch, args.classes, (height, width), tuple(args.iterations), dtype, args.channels_last)
    launched = counted_step(step, args.target)
    rows = numbers(launched)
    if args.csv is not None:
        with args.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    table = (
        counts_table(launched) if args.before is None else comparison_table(read_numbers(args.before), rows)
    )
    print(*table, sep="\n")


if __name__ == "__main__":
    main()
