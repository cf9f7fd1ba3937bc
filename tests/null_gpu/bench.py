"""python -m null_gpu.bench TABLE.csv OP: the smallest case of a benchmark on the null GPU; its exit status."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .values import Values

ROOT = Path(__file__).parents[2]

if __name__ == "__main__":
    table, op = sys.argv[1:]
    sys.path.insert(0, str(ROOT / "bench"))
    import measure

    measure.FLUSH_BYTES = 2**20  # there is no cache
    options = [
        "--benchmark-only",
        "--device",
        "cuda",
        "--smoke",
        "--results",
        table,
        "-p",
        "no:cacheprovider",
    ]
    os.chdir(ROOT)
    with Values():
        status = pytest.main([str(ROOT / "bench" / f"bench_{op}.py"), *options])
    print(f"\n{int(status)}", flush=True)
    os._exit(0)
