"""The stack of blocks over fields (N, B): what `calibration` runs where no single kernel serves it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Protocol

import torch
from torch import Tensor

from ._dispatch import kernels
from .dense import DenseDiffusion
from .fields import min_max, min_max_backward, soft_threshold, soft_threshold_backward
from .stencil import GridMasks, Iterates, ScaledLaplacian, StencilDiffusion

# The fused kernel takes the iteration counts of at most so many blocks.
MAX_FUSED_BLOCKS = 15
# Tokens that it serves: registers hold 64 x 64, in float64 a quarter of that.
MAX_FUSED_TOKENS = {torch.float32: 4096, torch.float64: 1024}


def can_fuse(backend: str, tokens: int, dtype: torch.dtype) -> bool:
    """Whether the fused kernel serves a grid; it computes in float64 for float64, else in float32."""
    return backend == "triton" and tokens <= MAX_FUSED_TOKENS.get(dtype, MAX_FUSED_TOKENS[torch.float32])


def tokens_first(x: Tensor) -> Tensor:
    """(b, H, W) -> (N, b), and (b, K, H, W) -> (K, N, b)."""
    return x.flatten(-2).movedim(0, -1).contiguous()


def images_first(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """The inverse of `tokens_first`, as a view."""
    return x.movedim(-1, 0).unflatten(-1, grid)


@dataclass
class Blocks:
    """Consecutive blocks and the images they work on; edges (2, N, B), lam and beta (blocks,)."""

    edges: Tensor
    lam: Tensor
    beta: Tensor
    grid: tuple[int, int]
    iterations: Sequence[int]
    dense: Sequence[bool]
    alpha: float
    detach_init: bool
    backend: str

    def part(self, part: slice) -> Blocks:
        return replace(
            self,
            lam=self.lam[part],
            beta=self.beta[part],
            iterations=self.iterations[part],
            dense=self.dense[part],
        )


class Run(Protocol):
    """Blocks that are computed together."""

    def forward(self, F: Tensor) -> Tensor:
        """F (N, B) as it enters -> every block's f (blocks, N, B)."""

    def backward(
        self, F: Tensor, f: Tensor, dF: Tensor, dgain_gain: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients for F, edges, lam and beta.

        dF (N, B) is that of F as it leaves, dgain_gain the gradient of the whole stack's gain times the gain:
        gain = prod (1 + f_l), so f_l takes dgain * gain / (1 + f_l) of it.
        """


@dataclass
class SeparateRun:
    """Block by block, in torch operations and, for dense blocks, the backend's matrix products."""

    blocks: Blocks

    def forward(self, F: Tensor) -> Tensor:
        masks = GridMasks.of(*self.blocks.grid, like=F)
        filtered = []
        for block in range(len(self.blocks.iterations)):
            f = soft_threshold(self._diffusion(block, masks).forward(F), F, self.blocks.beta[block])
            F = F + f
            filtered.append(f)
        return torch.stack(filtered)

    def backward(
        self, F: Tensor, f: Tensor, dF: Tensor, dgain_gain: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        masks = GridMasks.of(*self.blocks.grid, like=F)
        entering = list(accumulate(f[:-1], initial=F))  # F_l
        dedges = torch.zeros_like(self.blocks.edges)
        dlam, dbeta = torch.zeros_like(self.blocks.lam), torch.zeros_like(self.blocks.beta)
        iterates = self._stencil_iterates(F)
        for block in reversed(range(len(self.blocks.iterations))):
            diffusion = self._diffusion(block, masks)
            diffused = diffusion.forward_keeping(entering[block], iterates)
            df = dF + dgain_gain / (1 + f[block])
            ddiffused, dF_peak, dbeta[block] = soft_threshold_backward(
                df, diffused, entering[block], self.blocks.beta[block], f[block]
            )
            dF_diffused, dedges_block, dlam[block] = diffusion.backward(ddiffused)
            dF = dF + dF_peak + dF_diffused
            dedges += dedges_block
        return dF, dedges, dlam, dbeta

    def _stencil_iterates(self, like: Tensor) -> Iterates:
        """Room for the longest stencil recurrence; the blocks take turns in it."""
        counts = [
            count for count, dense in zip(self.blocks.iterations, self.blocks.dense, strict=True) if not dense
        ]
        return Iterates(2 ** max(counts, default=0), like, self.blocks.grid[1])

    def _diffusion(self, block: int, masks: GridMasks) -> StencilDiffusion | DenseDiffusion:
        count, lam = self.blocks.iterations[block], self.blocks.lam[block]
        if self.blocks.dense[block]:
            return DenseDiffusion(
                self.blocks.edges,
                lam,
                self.blocks.grid,
                count,
                self.blocks.alpha,
                self.blocks.detach_init,
                self.blocks.backend,
            )
        matrix = ScaledLaplacian(self.blocks.edges, lam, self.blocks.alpha, self.blocks.grid[1], masks)
        return StencilDiffusion(matrix, count, self.blocks.detach_init)


@dataclass
class FusedRun:
    """Stencil blocks in one kernel launch."""

    blocks: Blocks

    def forward(self, F: Tensor) -> Tensor:
        F, edges = images_first(F, self.blocks.grid), images_first(self.blocks.edges, self.blocks.grid)
        arguments = (self.blocks.lam, self.blocks.beta, self.blocks.iterations, self.blocks.alpha, False)
        return tokens_first(kernels("calibration").forward(F, edges, *arguments)[2])

    def backward(
        self, F: Tensor, f: Tensor, dF: Tensor, dgain_gain: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dgain = dgain_gain / (1 + f).prod(0)  # the kernel multiplies by its own blocks' gain
        F, edges, f, dF, dgain = (
            images_first(x, self.blocks.grid).contiguous() for x in (F, self.blocks.edges, f, dF, dgain)
        )
        arguments = (self.blocks.iterations, self.blocks.alpha, self.blocks.detach_init, False)
        dF, dedges, shares = kernels("calibration").backward(
            F, edges, self.blocks.lam, self.blocks.beta, f, dF, dgain, *arguments
        )
        return tokens_first(dF), tokens_first(dedges), *shares.sum(0)


def runs(blocks: Blocks) -> list[tuple[slice, Run]]:
    """Which blocks go together: as many stencil blocks as one kernel takes, and the others one by one."""
    fits = can_fuse(blocks.backend, blocks.grid[0] * blocks.grid[1], blocks.edges.dtype)
    keys = [fits and not dense for dense in blocks.dense]
    found: list[tuple[slice, Run]] = []
    for fused, group in groupby(range(len(keys)), key=keys.__getitem__):
        members = list(group)
        step = MAX_FUSED_BLOCKS if fused else len(members)
        for start in range(members[0], members[-1] + 1, step):
            part = slice(start, min(start + step, members[-1] + 1))
            found.append((part, (FusedRun if fused else SeparateRun)(blocks.part(part))))
    return found


def forward(blocks: Blocks, F: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Raw F (N, B) -> attention and gain (N, B), f (blocks, N, B)."""
    F = min_max(F)
    filtered = []
    for _, run in runs(blocks):
        f = run.forward(F)
        F = F + f.sum(0)
        filtered.append(f)
    f = torch.cat(filtered)
    return F, (1 + f).prod(0), f


def backward(
    blocks: Blocks, raw: Tensor, f: Tensor, dattention: Tensor, dgain: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From the gradients of attention and gain (N, B): those of raw F, edges, lam and beta."""
    normalised = min_max(raw)
    dF, dgain_gain = dattention, dgain * (1 + f).prod(0)
    dedges = torch.zeros_like(blocks.edges)
    dlam, dbeta = torch.zeros_like(blocks.lam), torch.zeros_like(blocks.beta)
    for part, run in reversed(runs(blocks)):
        F = normalised + f[: part.start].sum(0)
        dF, dedges_run, dlam[part], dbeta[part] = run.backward(F, f[part], dF, dgain_gain)
        dedges += dedges_run
    return min_max_backward(dF, raw, normalised), dedges, dlam, dbeta
