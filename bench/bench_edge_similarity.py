"""Edge cosines, forward and backward: one pass over S against the dense similarity matrix.

pytest bench/bench_edge_similarity.py --benchmark-only -s
"""

import pytest
import torch
from measure import alternate, ratios

from scm_fast import reference
from scm_fast.ops.edge_similarity import edge_similarity


@pytest.mark.parametrize(("batch", "classes", "side"), [(128, 200, 14), (8, 200, 28)])
def test_against_the_reference(benchmark, batch, classes, side):
    S = torch.randn(batch, classes, side, side).requires_grad_()
    weight = torch.randn(batch, 2, side, side)

    def step(function):
        S.grad = None
        function(S).backward(weight)

    functions = {
        "reference": lambda: step(reference.edge_similarity),
        "torch": lambda: step(lambda S: edge_similarity(S, "torch")),
    }
    torch.testing.assert_close(edge_similarity(S, "torch"), reference.edge_similarity(S))
    ratios(alternate(benchmark, functions, 7), "reference", "torch")
