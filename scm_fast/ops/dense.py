"""X_p F of one block through dense matrices, for iteration counts at which 2^p stencils cost more."""

from __future__ import annotations

from torch import Tensor

from .laplacian import laplacian_backward_op, laplacian_op
from .newton_schulz import newton_schulz_apply_backward_op, newton_schulz_apply_op


class DenseDiffusion:
    """The same interface as `StencilDiffusion`: fields are (N, B), edges (2, N, B)."""

    def __init__(
        self,
        edges: Tensor,
        lam: Tensor,
        grid: tuple[int, int],
        iterations: int,
        alpha: float,
        detach_init: bool,
        backend: str,
    ) -> None:
        self.edges = edges.permute(2, 0, 1).reshape(-1, 2, *grid)
        self.lam, self.backend = lam, backend
        self.arguments = (iterations, alpha, detach_init)

    def forward(self, F: Tensor) -> Tensor:
        L = laplacian_op(self.edges, self.lam, self.backend)
        return newton_schulz_apply_op(L, F.mT.contiguous(), *self.arguments, False, self.backend)[0].mT

    def forward_keeping(self, F: Tensor, _: object) -> Tensor:
        """X_p F, keeping the iterates for `backward` in memory of its own."""
        self.F = F.mT.contiguous()
        self.L = laplacian_op(self.edges, self.lam, self.backend)
        out, self.iterates = newton_schulz_apply_op(self.L, self.F, *self.arguments, True, self.backend)
        return out.mT

    def backward(self, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients for F (N, B), the edges (2, N, B) and lam, after `forward_keeping`."""
        dL, dF = newton_schulz_apply_backward_op(
            dout.mT.contiguous(), self.L, self.F, self.iterates, *self.arguments, self.backend
        )
        dedges, dlam = laplacian_backward_op(dL, self.edges, self.lam, self.backend)
        return dF.mT, dedges.flatten(2).permute(1, 2, 0), dlam
