"""Weighted pooling of S: one pass over it against the product map and its mean.

pytest bench/bench_pooling.py --benchmark-only
"""

import pytest
import torch
from implementations import MODES, Implementation, across_backends, proven, shapes, tasks

from scm_fast import reference
from scm_fast.benchmarks.table import Case
from scm_fast.ops.pooling import pooling

FIRST = (128, 200, 14)
SHAPES = shapes(
    *((mode, *FIRST) for mode in MODES),
    full=[(mode, *shape) for mode in MODES for shape in [(8, 200, 28), (32, 1000, 14), (4, 200, 64)]],
)


@pytest.mark.parametrize(("mode", "batch", "classes", "side"), SHAPES)
def test_pooling(compare, device, full, mode, batch, classes, side):
    S = torch.randn(batch, classes, side, side, device=device, requires_grad=True)
    weight = torch.rand(batch, side, side, device=device, requires_grad=True)
    dpooled = torch.randn(batch, classes, device=device)

    def make(backend: str) -> Implementation:
        if backend == "reference":
            return Implementation(lambda: reference.pooling(S, weight), (S, weight))
        return Implementation(lambda: pooling(S, weight, backend), (S, weight))

    compiling = full or (mode, batch, classes, side) == ("both", *FIRST)
    found = proven(across_backends(make, device, compiling=compiling), dpooled)
    compare(Case("pooling", mode, batch, classes, side, side, "float32"), tasks(found, mode, dpooled))
