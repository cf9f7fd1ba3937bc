"""The dense Laplacian from its edges, against the element-wise product of matrices.

pytest bench/bench_laplacian.py --benchmark-only
"""

import pytest
import torch
from implementations import MODES, Implementation, across_backends, proven, shapes, tasks

from scm_fast import reference
from scm_fast.benchmarks.table import Case
from scm_fast.ops.edge_similarity import edge_similarity
from scm_fast.ops.laplacian import laplacian

# The matrices do not depend on the number of classes.
CLASSES = 200
FIRST = (32, 14)
SHAPES = shapes(
    *((mode, *FIRST) for mode in MODES),
    ("both", 4, 28),
    full=[
        ("forward", 4, 28),
        ("backward", 4, 28),
        *((mode, *shape) for mode in MODES for shape in [(128, 14), (16, 28), (2, 56), (1, 64)]),
    ],
)


def gradient_on_edges(dE: torch.Tensor, side: int) -> torch.Tensor:
    """Turn a gradient by every entry of E (B, N, N) into that by the edges (B, 2, H, W): both entries of each."""
    grid = (dE + dE.mT).unflatten(2, (side, side)).unflatten(1, (side, side))
    columns = torch.arange(side, device=dE.device)
    rows = columns[:, None]
    edges = dE.new_zeros(len(dE), 2, side, side)
    edges[:, 0, :, :-1] = grid[:, rows, columns[:-1], rows, columns[1:]]
    edges[:, 1, :-1] = grid[:, rows[:-1], columns, rows[1:], columns]
    return edges


@pytest.mark.parametrize(("mode", "batch", "side"), SHAPES)
def test_laplacian(compare, device, full, mode, batch, side):
    S = torch.randn(batch, CLASSES, side, side, device=device)
    lam = torch.tensor(1.1, device=device, requires_grad=True)
    E = reference.similarity(S.flatten(2)).requires_grad_()
    edges = edge_similarity(S, "torch").requires_grad_()
    dL = torch.randn(batch, side**2, side**2, device=device)

    def make(backend: str) -> Implementation:
        if backend == "reference":
            return Implementation(lambda: reference.laplacian(E, lam, (side, side)), (E, lam))
        return Implementation(lambda: laplacian(edges, lam, backend), (edges, lam))

    found = proven(
        across_backends(make, device, compiling=full or (mode, batch, side) == ("both", *FIRST)),
        dL,
        translate=lambda gradients: (gradient_on_edges(gradients[0], side), *gradients[1:]),
    )
    compare(Case("laplacian", mode, batch, None, side, side, "float32"), tasks(found, mode, dL))
