"""The dense Laplacian from its edges, forward and backward, against the element-wise product of matrices.

pytest bench/bench_laplacian.py --benchmark-only -s
"""

import torch
from measure import alternate, ratios

from scm_fast import reference
from scm_fast.ops.edge_similarity import edge_similarity
from scm_fast.ops.laplacian import laplacian


def test_against_the_reference(benchmark):
    S = torch.randn(32, 200, 14, 14)
    lam = torch.tensor(1.1, requires_grad=True)
    E = reference.similarity(S.flatten(2)).requires_grad_()
    edges = edge_similarity(S, "torch").requires_grad_()
    weight = torch.randn(32, 196, 196)
    torch.testing.assert_close(laplacian(edges, lam, "torch"), reference.laplacian(E, lam, (14, 14)))

    def step(L: torch.Tensor) -> None:
        E.grad = edges.grad = lam.grad = None
        L.backward(weight)

    functions = {
        "reference": lambda: step(reference.laplacian(E, lam, (14, 14))),
        "torch": lambda: step(laplacian(edges, lam, "torch")),
    }
    ratios(alternate(benchmark, functions, 9), "reference", "torch")
