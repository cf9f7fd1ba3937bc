"""The stack of blocks over fields (N, B): what `calibration` runs where no single kernel serves it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch
from torch import Tensor

from ._dispatch import kernels
from .dense import DenseDiffusion
from .fields import min_max, min_max_backward, soft_threshold, soft_threshold_backward
from .stencil import GridMasks, Iterates, ScaledLaplacian, StencilDiffusion

# The fused kernel takes the iteration counts of at most so many blocks.
MAX_FUSED_BLOCKS = 15


def can_fuse(backend: str, tokens: int, dtype: torch.dtype) -> bool:
    """Whether the fused kernel serves a grid: registers hold 64 x 64 tokens, in float64 a quarter of that."""
    return backend == "triton" and tokens <= (1024 if dtype == torch.float64 else 4096)


def tokens_first(x: Tensor) -> Tensor:
    """(b, H, W) -> (N, b), and (b, K, H, W) -> (K, N, b)."""
    return x.flatten(-2).movedim(0, -1).contiguous()


def images_first(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """The inverse of `tokens_first`, as a view."""
    return x.movedim(-1, 0).unflatten(-1, grid)


@dataclass
class Blocks:
    """What consecutive blocks of some images compute with; edges (2, N, B), lam and beta (blocks,)."""

    edges: Tensor
    lam: Tensor
    beta: Tensor
    grid: tuple[int, int]
    iterations: Sequence[int]
    dense: Sequence[bool]
    alpha: float
    detach_init: bool
    backend: str

    def runs(self) -> list[tuple[slice, Blocks]]:
        """The longest parts that go together: stencil blocks in one kernel, and what goes block by block."""
        fits = can_fuse(self.backend, self.grid[0] * self.grid[1], self.edges.dtype)
        keys = [fits and not dense for dense in self.dense]
        runs = []
        for fused, group in groupby(range(len(keys)), key=keys.__getitem__):
            members = list(group)
            step = MAX_FUSED_BLOCKS if fused else len(members)
            for start in range(members[0], members[-1] + 1, step):
                part = slice(start, min(start + step, members[-1] + 1))
                runs.append((part, self._part(part, fused)))
        return runs

    def _part(self, part: slice, fused: bool) -> Blocks:
        kind = FusedBlocks if fused else SeparateBlocks
        settings = (self.alpha, self.detach_init, self.backend)
        counts, dense = self.iterations[part], self.dense[part]
        return kind(self.edges, self.lam[part], self.beta[part], self.grid, counts, dense, *settings)

    def forward(self, F: Tensor) -> Tensor:
        """F (N, B) as it enters -> every block's f (blocks, N, B)."""
        raise NotImplementedError

    def backward(
        self, F: Tensor, f: Tensor, dF: Tensor, dgain_gain: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients for F, edges, lam and beta.

        dF (N, B) is that of F as it leaves, dgain_gain the gradient of the whole stack's gain times the gain:
        gain = prod (1 + f_l), so f_l takes dgain * gain / (1 + f_l) of it.
        """
        raise NotImplementedError


class SeparateBlocks(Blocks):
    """Block by block, in torch operations and, for dense blocks, the backend's matrix products."""

    def forward(self, F: Tensor) -> Tensor:
        masks = GridMasks.of(*self.grid, like=F)
        filtered = []
        for block in range(len(self.iterations)):
            f = soft_threshold(self._diffusion(block, masks).forward(F), F, self.beta[block])
            F = F + f
            filtered.append(f)
        return torch.stack(filtered)

    def backward(
        self, F: Tensor, f: Tensor, dF: Tensor, dgain_gain: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        masks = GridMasks.of(*self.grid, like=F)
        entering = list(accumulate(f[:-1], initial=F))  # F_l
        dedges = torch.zeros_like(self.edges)
        dlam, dbeta = torch.zeros_like(self.lam), torch.zeros_like(self.beta)
        iterates = self._stencil_iterates(F)
        for block in reversed(range(len(self.iterations))):
            diffusion = self._diffusion(block, masks)
            diffused = diffusion.forward_keeping(entering[block], iterates)
            df = dF + dgain_gain / (1 + f[block])
            ddiffused, dF_peak, dbeta[block] = soft_threshold_backward(
                df, diffused, entering[block], self.beta[block], f[block]
            )
            dF_diffused, dedges_block, dlam[block] = diffusion.backward(ddiffused)
            dF = dF + dF_peak + dF_diffused
            dedges += dedges_block
        return dF, dedges, dlam, dbeta

    def _stencil_iterates(self, like: Tensor) -> Iterates:
        """Room for the longest stencil recurrence; the blocks take turns in it."""
        counts = [count for count, dense in zip(self.iterations, self.dense, strict=True) if not dense]
        return Iterates(2 ** max(counts, default=0), like, self.grid[1])

    def _diffusion(self, block: int, masks: GridMasks) -> StencilDiffusion | DenseDiffusion:
        count, lam = self.iterations[block], self.lam[block]
        if self.dense[block]:
            return DenseDiffusion(
                self.edges, lam, self.grid, count, self.alpha, self.detach_init, self.backend
            )
        matrix = ScaledLaplacian(self.edges, lam, self.alpha, self.grid[1], masks)
        return StencilDiffusion(matrix, count, self.detach_init)


class FusedBlocks(Blocks):
    """Stencil blocks in one kernel launch."""

    def forward(self, F: Tensor) -> Tensor:
        F, edges = images_first(F, self.grid), images_first(self.edges, self.grid)
        arguments = (self.lam, self.beta, self.iterations, self.alpha, False)
        return tokens_first(kernels("calibration").forward(F, edges, *arguments)[2])

    def backward(
        self, F: Tensor, f: Tensor, dF: Tensor, dgain_gain: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dgain = dgain_gain / (1 + f).prod(0)  # the kernel multiplies by its own blocks' gain
        F, edges, f, dF, dgain = (
            images_first(x, self.grid).contiguous() for x in (F, self.edges, f, dF, dgain)
        )
        arguments = (self.iterations, self.alpha, self.detach_init, False)
        dF, dedges, shares = kernels("calibration").backward(
            F, edges, self.lam, self.beta, f, dF, dgain, *arguments
        )
        return tokens_first(dF), tokens_first(dedges), *shares.sum(0)


def forward(blocks: Blocks, F: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Raw F (N, B) -> attention and gain (N, B), f (blocks, N, B)."""
    F = min_max(F)
    filtered = []
    for _, run in blocks.runs():
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
    for part, run in reversed(blocks.runs()):
        F = normalised + f[: part.start].sum(0)
        dF, dedges_run, dlam[part], dbeta[part] = run.backward(F, f[part], dF, dgain_gain)
        dedges += dedges_run
    return min_max_backward(dF, raw, normalised), dedges, dlam, dbeta
