"""python -m null_gpu.table [--out ../docs/tables/kernels.md]: launches of a training step, on the null GPU."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from scm_fast.files import replace_section

from . import build

STEP = ("deit_small_patch16_224", "2", "tscam", "scm", "sat", "lctr", "cls")  # network, images, methods
PARTS = ("forward", "backward", "update")


def launches_table(found: dict) -> list[str]:
    """Markdown, of what null_gpu.steps prints."""
    lines = [
        "| method | forward | backward | optimiser | of these, this package's kernels |",
        "|---|---|---|---|---|",
    ]
    for method, measured in found.items():
        parts = [measured["parts"][part] for part in PARTS]
        launches = " | ".join(str(part["launches"]) for part in parts)
        ours = sum(
            number for part in parts for name, number in part["kernels"].items() if name.endswith("_kernel")
        )
        lines.append(f"| `{method}` | {launches} | {ours} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="a page whose table is replaced")
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "null_gpu.steps", *STEP]
    done = subprocess.run(command, env=build.environment(), stdout=subprocess.PIPE, text=True, check=True)
    lines = launches_table(json.loads(done.stdout.splitlines()[-1]))
    print(*lines, sep="\n")
    if arguments.out:
        replace_section(arguments.out, "launches", "\n".join(lines))


if __name__ == "__main__":
    main()
