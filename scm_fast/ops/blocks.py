"""The stack of blocks over fields (N, B): what `calibration` runs where no single kernel serves it all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from .dense import DenseDiffusion
from .fields import min_max, min_max_backward, soft_threshold, soft_threshold_backward
from .stencil import GridMasks, Iterates, ScaledLaplacian, StencilDiffusion


class BlockStack:
    """A stack of blocks for some images: `forward(F)` and `backward(...)`, both from scratch.

    edges is (2, N, B), lam and beta (L,), `dense` says which blocks run on matrices.
    """

    def __init__(
        self,
        edges: Tensor,
        lam: Tensor,
        beta: Tensor,
        grid: tuple[int, int],
        iterations: Sequence[int],
        dense: Sequence[bool],
        alpha: float,
        detach_init: bool,
        backend: str,
    ) -> None:
        self.edges, self.lam, self.beta, self.grid = edges, lam, beta, grid
        self.iterations, self.dense = iterations, dense
        self.alpha, self.detach_init, self.backend = alpha, detach_init, backend
        self.masks = GridMasks.of(*grid, like=edges)

    def forward(self, F: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Raw F (N, B) -> attention and gain (N, B), f (L, N, B)."""
        F = min_max(F)
        gain, filtered = torch.ones_like(F), []
        for block in range(len(self.iterations)):
            f = soft_threshold(self._diffusion(block).forward(F), F, self.beta[block])
            F, gain = F + f, gain * (1 + f)
            filtered.append(f)
        return F, gain, torch.stack(filtered)

    def backward(
        self, raw: Tensor, f: Tensor, dF: Tensor, dgain: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """From the gradients of attention and gain (N, B): those of raw F, edges, lam and beta."""
        first = min_max(raw)
        entering = list(accumulate(f[:-1], initial=first))  # F_l
        dgain_gain = dgain * (1 + f).prod(0)
        dedges = torch.zeros_like(self.edges)
        dlam, dbeta = torch.zeros_like(self.lam), torch.zeros_like(self.beta)
        iterates = self._stencil_iterates(first)
        for block in reversed(range(len(self.iterations))):
            F = entering[block]
            diffusion = self._diffusion(block)
            diffused = diffusion.forward_keeping(F, iterates)
            # gain = prod (1 + f_l), so df_l takes dgain * gain / (1 + f_l).
            df = dF + dgain_gain / (1 + f[block])
            ddiffused, dF_peak, dbeta[block] = soft_threshold_backward(
                df, diffused, F, self.beta[block], f[block]
            )
            dF_diffused, dedges_block, dlam[block] = diffusion.backward(ddiffused)
            dF = dF + dF_peak + dF_diffused
            dedges += dedges_block
        return min_max_backward(dF, raw, first), dedges, dlam, dbeta

    def _stencil_iterates(self, like: Tensor) -> Iterates:
        """Room for the longest stencil recurrence; the blocks take turns in it."""
        counts = [count for count, dense in zip(self.iterations, self.dense, strict=True) if not dense]
        return Iterates(2 ** max(counts, default=0), like, self.grid[1])

    def _diffusion(self, block: int) -> StencilDiffusion | DenseDiffusion:
        count, lam = self.iterations[block], self.lam[block]
        if self.dense[block]:
            return DenseDiffusion(
                self.edges, lam, self.grid, count, self.alpha, self.detach_init, self.backend
            )
        matrix = ScaledLaplacian(self.edges, lam, self.alpha, self.grid[1], self.masks)
        return StencilDiffusion(matrix, count, self.detach_init)
