"""Edge cosines: one pass over S against the dense similarity matrix.

pytest bench/bench_edge_similarity.py --benchmark-only
"""

import pytest
import torch
from implementations import MODES, Implementation, across_backends, proven, shapes, tasks

from scm_fast import reference
from scm_fast.benchmarks.table import Case
from scm_fast.ops.edge_similarity import edge_similarity

FIRST = (128, 200, 14)
OTHERS = [(8, 200, 28), (32, 1000, 14)]
SHAPES = shapes(
    *((mode, *FIRST) for mode in MODES),
    *(("both", *shape) for shape in OTHERS),
    full=[
        *((mode, *shape) for mode in ("forward", "backward") for shape in OTHERS),
        *((mode, *shape) for mode in MODES for shape in [(256, 200, 14), (128, 1000, 14), (32, 200, 28)]),
        *((mode, *shape) for mode in MODES for shape in [(8, 1000, 28), (8, 200, 56), (4, 200, 64)]),
    ],
)


@pytest.mark.parametrize(("mode", "batch", "classes", "side"), SHAPES)
def test_edge_similarity(compare, device, full, mode, batch, classes, side):
    S = torch.randn(batch, classes, side, side, device=device, requires_grad=True)
    dedges = torch.randn(batch, 2, side, side, device=device)

    def make(backend: str) -> Implementation:
        if backend == "reference":
            return Implementation(lambda: reference.edge_similarity(S), (S,))
        return Implementation(lambda: edge_similarity(S, backend), (S,))

    compiling = full or (mode, batch, classes, side) == ("both", *FIRST)
    found = proven(across_backends(make, device, compiling=compiling), dedges)
    compare(Case("edge_similarity", mode, batch, classes, side, side, "float32"), tasks(found, mode, dedges))
