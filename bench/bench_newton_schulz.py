"""X_p F: one fused product per iteration against the literal two.

    pytest bench/bench_newton_schulz.py --benchmark-only

With "X_0 constant" as the published code, which takes X_0 out of the gradient.
"""

import pytest
import torch
from implementations import MODES, Implementation, across_backends, proven, shapes, tasks

from scm_fast import reference
from scm_fast.benchmarks.table import Case
from scm_fast.ops.newton_schulz import newton_schulz_apply

ALPHA, CLASSES = 0.002, 200
FIRST = (16, 14, 16, False)
SHAPES = shapes(
    FIRST,
    full=[
        (16, 14, 16, True),
        (16, 14, 4, False),
        (128, 14, 16, False),
        (2, 28, 16, False),
        (1, 40, 16, False),
    ],
)


@pytest.mark.parametrize(("batch", "side", "iterations", "detach_init"), SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_newton_schulz(compare, device, full, mode, batch, side, iterations, detach_init):
    S = torch.randn(batch, CLASSES, side, side, device=device)
    one = torch.ones((), device=device)
    L = reference.laplacian(reference.similarity(S.flatten(2)), one, (side, side)).requires_grad_()
    F = torch.rand(batch, side**2, device=device, requires_grad=True)
    dout = torch.randn(batch, side**2, device=device)

    def literal() -> torch.Tensor:
        X = reference.newton_schulz(L, iterations, ALPHA, detach_init)
        return (X @ F.unsqueeze(-1)).squeeze(-1)

    def make(backend: str) -> Implementation:
        if backend == "reference":
            return Implementation(literal, (L, F))
        return Implementation(
            lambda: newton_schulz_apply(L, F, iterations, ALPHA, detach_init, backend), (L, F)
        )

    first = (mode, batch, side, iterations, detach_init) == ("both", *FIRST)
    found = across_backends(make, device, compiling=full or first)
    variant = f"p = {iterations}" + (", X_0 constant" if detach_init else "")
    found = proven(found, dout)
    case = Case("newton_schulz", mode, batch, None, side, side, "float32", variant)
    compare(case, tasks(found, mode, dout))
