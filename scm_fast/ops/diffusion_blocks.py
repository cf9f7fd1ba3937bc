"""The blocks of `activation_diffusion` over fields (N, B), where no single kernel serves them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ..backends import implementation
from . import newton_schulz
from .diffusion_fields import min_max, min_max_backward, soft_threshold, soft_threshold_backward
from .diffusion_stencil import GridMasks, Iterates, ScaledLaplacian, StencilDiffusion

if TYPE_CHECKING:
    from .activation_diffusion import Segment, Settings


def tokens_first(x: Tensor) -> Tensor:
    """(b, H, W) -> (N, b), and (b, K, H, W) -> (K, N, b)."""
    return x.flatten(-2).movedim(0, -1).contiguous()


def images_first(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """The inverse of `tokens_first`, as a view."""
    return x.movedim(-1, 0).unflatten(-1, grid)


@dataclass(frozen=True)
class Blocks:
    """Consecutive blocks and the images they work on; edges (2, N, B), lam and beta (blocks,)."""

    edges: Tensor
    lam: Tensor
    beta: Tensor
    grid: tuple[int, int]
    settings: Settings

    @classmethod
    def of(cls, edges: Tensor, lam: Tensor, beta: Tensor, settings: Settings) -> Blocks:
        """Make it of edges (B, 2, H, W), whose dtype all others take."""
        grid = (edges.shape[2], edges.shape[3])
        return cls(tokens_first(edges), lam.to(edges.dtype), beta.to(edges.dtype), grid, settings)

    def part(self, blocks: slice) -> Blocks:
        settings = self.settings._replace(iterations=self.settings.iterations[blocks])
        return replace(self, lam=self.lam[blocks], beta=self.beta[blocks], settings=settings)


class Computation(Protocol):
    """Compute the blocks of a segment."""

    def forward(self, F: Tensor) -> Tensor:
        """F (N, B) as it enters -> every block's f (blocks, N, B)."""

    def backward(
        self, F: Tensor, f: Tensor, dF: Tensor, dgain_gain: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients for F, edges, lam and beta.

        dF (N, B) is that of F as it leaves, dgain_gain the gradient of the whole stack's gain times the gain:
        gain = prod (1 + f_l), so f_l takes dgain * gain / (1 + f_l) of it.
        """


@dataclass(frozen=True)
class Separate:
    """Block by block, in torch operations and, for dense blocks, the backend's matrix products."""

    blocks: Blocks
    dense: Sequence[bool]

    def forward(self, F: Tensor) -> Tensor:
        masks = GridMasks.of(*self.blocks.grid, like=F)
        filtered = []
        for block in range(len(self.dense)):
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
        for block in reversed(range(len(self.dense))):
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
        counts = zip(self.blocks.settings.iterations, self.dense, strict=True)
        longest = max((count for count, dense in counts if not dense), default=0)
        return Iterates(2**longest, like, self.blocks.grid[1])

    def _diffusion(self, block: int, masks: GridMasks) -> StencilDiffusion | DenseDiffusion:
        one = self.blocks.part(slice(block, block + 1))
        if self.dense[block]:
            return DenseDiffusion(one)
        settings = one.settings
        matrix = ScaledLaplacian(one.edges, one.lam[0], settings.alpha, one.grid[1], masks)
        return StencilDiffusion(matrix, settings.iterations[0], settings.detach_init)


class DenseDiffusion:
    """X_p F of one block through dense matrices, where 2^p stencils cost more.

    The same interface as `StencilDiffusion`: fields are (N, B), edges (2, N, B).
    """

    def __init__(self, block: Blocks) -> None:
        self.edges = block.edges.permute(2, 0, 1).reshape(-1, 2, *block.grid)
        self.lam, self.settings = block.lam[0], block.settings
        self.laplacian = implementation("laplacian", block.settings.backend)

    def forward(self, F: Tensor) -> Tensor:
        """X_p F, forgetting the iterates."""
        return self._apply(F, kept=min(self.settings.iterations[0], 2))

    def forward_keeping(self, F: Tensor, _: object) -> Tensor:
        """X_p F, keeping the iterates for `backward` in memory of its own."""
        return self._apply(F, kept=self.settings.iterations[0])

    def _apply(self, F: Tensor, kept: int) -> Tensor:
        self.F, self.L = F.mT.contiguous(), self.laplacian.forward(self.edges, self.lam)
        iterations, alpha, _, _, backend = self.settings
        self.iterates = self.L.new_empty(kept, *self.L.shape)
        return newton_schulz.apply(self.L, self.F, self.iterates, iterations[0], alpha, backend).mT

    def backward(self, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients for F (N, B), the edges (2, N, B) and lam, after `forward_keeping`."""
        _, alpha, detach_init, _, backend = self.settings
        dL, dF = newton_schulz.apply_backward(
            dout.mT.contiguous(), self.L, self.F, self.iterates, alpha, detach_init, backend
        )
        dedges, dlam = self.laplacian.backward(dL, self.edges, self.lam)
        return dF.mT, dedges.flatten(2).permute(1, 2, 0), dlam


@dataclass(frozen=True)
class Fused:
    """Stencil blocks in one kernel launch."""

    blocks: Blocks

    def forward(self, F: Tensor) -> Tensor:
        grid, settings = self.blocks.grid, self.blocks.settings
        F, edges = images_first(F, grid), images_first(self.blocks.edges, grid)
        arguments = (self.blocks.lam, self.blocks.beta, settings.iterations, settings.alpha)
        return tokens_first(_kernels().forward(F, edges, *arguments, normalise=False)[2])

    def backward(
        self, F: Tensor, f: Tensor, dF: Tensor, dgain_gain: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        grid, settings = self.blocks.grid, self.blocks.settings
        dgain = dgain_gain / (1 + f).prod(0)  # the kernel multiplies by its own blocks' gain
        F, edges, f, dF, dgain = (
            images_first(x, grid).contiguous() for x in (F, self.blocks.edges, f, dF, dgain)
        )
        arguments = (settings.iterations, settings.alpha, settings.detach_init)
        dF, dedges, shares = _kernels().backward(
            F, edges, self.blocks.lam, self.blocks.beta, f, dF, dgain, *arguments, normalise=False
        )
        return tokens_first(dF), tokens_first(dedges), *shares.sum(0)


def _kernels():
    return implementation("activation_diffusion", "triton")


def _computation(blocks: Blocks, segment: Segment) -> Computation:
    part = blocks.part(segment.blocks)
    return Fused(part) if segment.fused else Separate(part, segment.dense)


def forward(blocks: Blocks, segments: Sequence[Segment], F: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Raw F (N, B) -> attention and gain (N, B), f (blocks, N, B)."""
    F = min_max(F)
    filtered = []
    for segment in segments:
        f = _computation(blocks, segment).forward(F)
        F = F + f.sum(0)
        filtered.append(f)
    f = torch.cat(filtered)
    return F, (1 + f).prod(0), f


def backward(
    blocks: Blocks, segments: Sequence[Segment], raw: Tensor, f: Tensor, dattention: Tensor, dgain: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Turn gradients of attention and gain (N, B) into those of raw F, edges, lam and beta."""
    normalised = min_max(raw)
    dF, dgain_gain = dattention, dgain * (1 + f).prod(0)
    dedges = torch.zeros_like(blocks.edges)
    dlam, dbeta = torch.zeros_like(blocks.lam), torch.zeros_like(blocks.beta)
    for segment in reversed(segments):
        part = segment.blocks
        F = normalised + f[: part.start].sum(0)
        computation = _computation(blocks, segment)
        dF, dedges_part, dlam[part], dbeta[part] = computation.backward(F, f[part], dF, dgain_gain)
        dedges += dedges_part
    return min_max_backward(dF, raw, normalised), dedges, dlam, dbeta
