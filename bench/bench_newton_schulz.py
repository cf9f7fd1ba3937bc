"""X_16 F, forward and backward: one fused product an iteration against the literal two.

pytest bench/bench_newton_schulz.py --benchmark-only -s
"""

import pytest
import torch
from measure import alternate, ratios

from scm_fast import reference
from scm_fast.ops.newton_schulz import newton_schulz_apply


@pytest.mark.parametrize("detach_init", [False, True], ids=["true-gradient", "detached"])
def test_against_the_reference(benchmark, detach_init):
    S, F = torch.randn(16, 200, 14, 14), torch.rand(16, 196)
    L = reference.laplacian(reference.similarity(S.flatten(2)), torch.tensor(1.0), (14, 14)).requires_grad_()
    weight = torch.randn(16, 196)

    def literal(iterations: int) -> torch.Tensor:
        X = reference.newton_schulz(L, iterations, 0.002, detach_init)
        return (X @ F.unsqueeze(-1)).squeeze(-1)

    def fused(iterations: int, keep: bool) -> torch.Tensor:
        return newton_schulz_apply(L, F, iterations, 0.002, detach_init, keep, "torch")

    def step(out: torch.Tensor) -> None:
        L.grad = None
        out.backward(weight)

    torch.testing.assert_close(fused(16, True), literal(16), rtol=1e-3, atol=1e-3)
    functions = {
        "reference": lambda: step(literal(16)),
        "kept": lambda: step(fused(16, True)),
        "recomputed": lambda: step(fused(16, False)),
    }
    results = alternate(benchmark, functions, 5)
    ratios(results, "reference", "kept")
    ratios(results, "reference", "recomputed")
