"""Measure this package against its reference, draw the results, or find what became slower.

  scm-fast bench                              every op on the CPU: at most 5 minutes on two quiet cores
  scm-fast bench pooling laplacian            these ops only
  scm-fast bench --device cuda --full         all shapes and backends on the GPU
  scm-fast bench --plot                       PNGs of the newest table of bench/results
  scm-fast bench --plot A.csv --out docs      PNGs of that table, into docs
  scm-fast bench --compare A.csv B.csv        where B is slower than A, or takes more memory

The benchmarks need a checkout, because bench/ is not installed (`pip install -e ".[dev,plots]"`). The
backends of an op take turns in rounds: the reference (the paper's equations), torch, triton on a GPU, and the
reference through torch.compile. Trust the ratios: they are taken within a round, and shown with their 20th
and 80th percentile. A backend must equal the reference before it is timed. The table is printed, and written
to bench/results/DEVICE-DATE-COMMIT.csv.

Exit status: 0 success; 1 a benchmark failed or missed its promise, or --compare found something worse beyond
its spread; 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import subprocess
import sys
from pathlib import Path

from ..benchmarks.regressions import TOLERANCE, find_regressions, format_regressions
from ..benchmarks.table import read_table
from ..errors import InputError

BENCH = Path(__file__).resolve().parents[2] / "bench"
RESULTS = BENCH / "results"
_NEWEST = "newest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ops", nargs="*", metavar="OP", help="e.g. pooling; bench/bench_OP.py (default: all)")
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="where to measure (default: cpu)"
    )
    parser.add_argument("--full", action="store_true", help="all shapes, and all compiled: hours on a CPU")
    parser.add_argument("-k", metavar="EXPRESSION", help="only these cases, as pytest selects them by name")
    parser.add_argument("--results", type=Path, metavar="FILE.csv", help="where to write the table")
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--plot", nargs="?", const=_NEWEST, metavar="FILE.csv", help="draw a table (default: the newest)"
    )
    action.add_argument(
        "--compare", nargs=2, type=Path, metavar=("A.csv", "B.csv"), help="compare two tables"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for --plot (default: the table's)")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        help=f"for --compare: how much a time may grow, as a fraction (default: {TOLERANCE})",
    )


def execute(args: argparse.Namespace) -> int:
    measuring = not args.compare and args.plot is None
    if not measuring and (args.ops or args.full or args.k or args.results):
        raise InputError("--plot and --compare read tables; OP, --full, -k and --results are for measuring")
    if args.out is not None and args.plot is None:
        raise InputError("--out is the folder for --plot; a measurement writes its table to --results")
    if args.compare:
        before, after = args.compare
        return _compare(before, after, args.tolerance)
    if args.plot is not None:
        return _plot(args.plot, args.out)
    return _measure(args)


def _compare(before: Path, after: Path, tolerance: float) -> int:
    if tolerance < 0:
        raise InputError(f"--tolerance must not be negative, got {tolerance}")
    found = find_regressions(read_table(before), read_table(after), tolerance)
    print(format_regressions(found))
    return 1 if found.worse else 0


def _plot(table: str, out: Path | None) -> int:
    from ..benchmarks.plots import draw

    path = _newest_table() if table == _NEWEST else Path(table)
    for written in draw(read_table(path), path.parent if out is None else out):
        print(written)
    return 0


def _newest_table() -> Path:
    tables = sorted(RESULTS.glob("*.csv"), key=lambda path: path.stat().st_mtime)
    if not tables:
        raise InputError(f"{RESULTS}: no table there to plot; run `scm-fast bench` first, or name a file")
    return tables[-1]


def _measure(args: argparse.Namespace) -> int:
    if not (BENCH / "conftest.py").is_file():
        raise InputError(
            f"{BENCH}: no such folder. The benchmarks are not installed with the package: "
            'clone the repository and run `pip install -e ".[dev]"` and `scm-fast bench` there'
        )
    for package in ("pytest", "pytest_benchmark"):
        if importlib.util.find_spec(package) is None:
            raise InputError(f"{package} is not installed; pip install 'scm-fast[dev]'")
    from ..devices import resolve_device

    resolve_device(args.device)
    files = [_bench_file(op) for op in args.ops] or [BENCH]
    results = _default_results(args.device) if args.results is None else args.results.resolve()
    command = [sys.executable, "-m", "pytest", *map(str, files), "--benchmark-only", "-v"]
    command += ["--device", args.device, "--results", str(results)]
    command += ["--full"] if args.full else []
    command += ["-k", args.k] if args.k else []
    # A process of its own: torch and Triton read the environment, and pytest the folder, when they start.
    status = subprocess.run(command, cwd=BENCH.parent).returncode
    if status == 5:
        raise InputError(f"no benchmark was selected by {' '.join(args.ops) or 'bench/'} with -k {args.k!r}")
    if status not in (0, 1):
        raise InputError(f"pytest ended with status {status}; its message is above")
    return status


def _bench_file(op: str) -> Path:
    path = BENCH / f"bench_{op}.py"
    if not path.is_file():
        known = sorted(file.stem.removeprefix("bench_") for file in BENCH.glob("bench_*.py"))
        raise InputError(f"there is no benchmark of {op!r}; there are {', '.join(known)}")
    return path


def _default_results(device: str) -> Path:
    """bench/results/cpu-2026-11-16-1a2b3c4.csv"""
    command = ["git", "-C", str(BENCH), "rev-parse", "--short", "HEAD"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # a source archive
        commit = ""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return RESULTS / ("-".join(filter(None, (device, date, commit))) + ".csv")
