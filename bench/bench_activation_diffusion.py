"""The stack of blocks on scalar fields, against the dense matrices of every block.

    pytest bench/bench_activation_diffusion.py --benchmark-only

Four blocks of p = 4.
"""

import pytest
import torch
from implementations import MODES, Implementation, across_backends, proven, shapes, tasks

from scm_fast import reference
from scm_fast.benchmarks.table import Case
from scm_fast.ops.activation_diffusion import Settings, activation_diffusion
from scm_fast.ops.edge_similarity import edge_similarity

# The fields do not depend on the number of classes.
CLASSES = 200
SETTINGS = Settings((4, 4, 4, 4), 0.002)
FIRST = (8, 14)
SHAPES = shapes(
    *((mode, *FIRST) for mode in MODES),
    full=[(mode, *shape) for mode in MODES for shape in [(128, 14), (8, 28), (1, 40)]],
)


@pytest.mark.parametrize(("mode", "batch", "side"), SHAPES)
def test_activation_diffusion(compare, device, full, mode, batch, side):
    generator = torch.Generator().manual_seed(0)
    S = torch.randn(batch, CLASSES, side, side, generator=generator).to(device)
    F = torch.rand(batch, side, side, generator=generator).to(device).requires_grad_()
    edges = edge_similarity(S, "torch").requires_grad_()
    lam, beta = (torch.full((4,), value, device=device, requires_grad=True) for value in (1.0, 0.5))
    inputs = (F, edges, lam, beta)
    doutput = tuple(torch.randn(batch, side, side, generator=generator).to(device) for _ in range(2))

    def make(backend: str) -> Implementation:
        if backend == "reference":
            return Implementation(lambda: reference.activation_diffusion(*inputs, *SETTINGS[:3]), inputs)
        settings = SETTINGS._replace(backend=backend)
        return Implementation(lambda: activation_diffusion(*inputs, settings), inputs)

    compiling = full or (mode, batch, side) == ("both", *FIRST)
    found = across_backends(make, device, compiling=compiling)
    found = proven(found, doutput, compared=3)  # that by beta nearly cancels in float32
    case = Case("activation_diffusion", mode, batch, None, side, side, "float32", "4 blocks of p = 4")
    compare(case, tasks(found, mode, doutput))
