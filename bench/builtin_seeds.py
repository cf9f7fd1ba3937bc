"""Attention alone, TS-CAM and SCM on the built-in set, seed by seed: the table of docs/results.md.

    OMP_NUM_THREADS=1 python bench/builtin_seeds.py --out runs/seeds

Each seed is what `scm-fast demo` does, with that seed for weights, order and augmentation; the images are the same.
Runs that are in the folder already are not done again.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from scm_fast.demo import CENTRE, compare
from scm_fast.devices import resolve_device
from scm_fast.training import make_config
from scm_fast.training.recipes import BUILTIN, read_recipe


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/seeds"), help="folder for the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--device", help="e.g. cuda, cpu")
    args = parser.parse_args()
    found = []
    for seed in args.seeds:
        values = {"seed": seed, "out": str(args.out / f"seed-{seed}"), "resume": "auto"}
        config = make_config(read_recipe(BUILTIN) | values, BUILTIN)
        found.append(compare(config, resolve_device(args.device), lambda line: print(line, flush=True)))
        print(f"seed {seed}: {found[-1]}", flush=True)
    print(table(args.seeds, found))


def table(seeds: list[int], found: list[dict[str, dict[str, float]]]) -> str:
    """Markdown: GT-Known of each seed, its mean and standard deviation, and the range of classification."""
    lines = [
        f"| GT-Known | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | classification |",
        "|---" * (len(seeds) + 3) + "|",
    ]
    for title in found[0]:
        known = [rows[title]["gt_known"] for rows in found]
        mean = f"{statistics.mean(known):.1f}"
        if len(seeds) > 1 and title != CENTRE:  # which knows no seed
            mean += f" ± {statistics.stdev(known):.1f}"
        right = [rows[title]["top1_cls"] for rows in found if "top1_cls" in rows[title]]
        classified = f"{min(right):.1f} to {max(right):.1f}" if right else ""
        lines.append(f"| {title} | {' | '.join(f'{value:.1f}' for value in known)} | {mean} | {classified} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
