"""X_p F without a matrix: Newton-Schulz as a polynomial of a 5-point stencil, in plain torch.

With M = sqrt(alpha) L (symmetric), R_k = I - L X_k squares itself at every iteration, hence

    X_p F = sum_{j < K} r_j,   r_0 = sqrt(alpha) M F,   r_j = r_{j-1} - M M r_{j-1},   K = 2^p

Fields are (N, B), as in `diffusion_fields`; the edges come as (2, N, B). Thousands of small operations make up a
pass, so their fixed cost counts: the shifted views of every buffer are made once, and signs are in the weights.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class GridMasks(NamedTuple):
    """Masks of where edges exist, as columns (N, 1) in the fields' dtype."""

    right: Tensor
    down: Tensor
    degree: Tensor

    @classmethod
    def of(cls, height: int, width: int, like: Tensor) -> GridMasks:
        index = torch.arange(height * width, device=like.device)
        row, column = index // width, index % width
        right, down = column < width - 1, row < height - 1
        degree = right.long() + down.long() + (column > 0).long() + (row > 0).long()
        return cls(*(mask.to(like.dtype).unsqueeze(-1) for mask in (right, down, degree)))


class Shifts(NamedTuple):
    """A field (..., N, B) with the views of it that a stencil on a grid of some width pairs up."""

    all: Tensor
    but_last: Tensor
    but_first: Tensor
    but_last_row: Tensor
    but_first_row: Tensor

    @classmethod
    def of(cls, x: Tensor, width: int) -> Shifts:
        n = x.shape[-2]
        return cls(
            x,
            x.narrow(-2, 0, n - 1),
            x.narrow(-2, 1, n - 1),
            x.narrow(-2, 0, n - width),
            x.narrow(-2, width, n - width),
        )

    def unbind(self) -> list[Shifts]:
        """One for each entry of the first dimension."""
        return [Shifts(*views) for views in zip(*(view.unbind(0) for view in self), strict=True)]


class Iterates:
    """Room for the pairs (r_{j-1}, y_j), j = 1 ... K - 1, that a backward pass walks back."""

    def __init__(self, terms: int, like: Tensor, width: int) -> None:
        memory = like.new_empty(terms - 1, 2, *like.shape)
        self.pairs = Shifts.of(memory, width).unbind()
        rows = Shifts.of(memory.flatten(0, 1), width).unbind()
        self.r, self.y = rows[0::2], rows[1::2]


class ScaledLaplacian:
    """M = sqrt(alpha) (D - A) o (lam E - 1), as its diagonal and its right and down edges."""

    def __init__(self, edges: Tensor, lam: Tensor, alpha: float, width: int, masks: GridMasks) -> None:
        self.edges, self.lam, self.width, self.masks = edges, lam, width, masks
        self.scale = math.sqrt(alpha)
        weights = (1 - lam * edges).mul_(self.scale)  # [2, N, B]
        self.right = weights[0].mul_(masks.right)[:-1]
        self.down = weights[1].mul_(masks.down)[:-width]
        self.diagonal = (masks.degree * (self.scale * (lam - 1))).expand_as(edges[0]).contiguous()
        self.minus_right, self.minus_down, self.minus_diagonal = -self.right, -self.down, -self.diagonal

    def apply(self, x: Shifts, out: Shifts) -> None:
        """Compute out = M x."""
        torch.mul(self.diagonal, x.all, out=out.all)
        _add_neighbours(self.right, self.down, x, out)

    def subtract(self, start: Shifts, x: Shifts, out: Shifts) -> None:
        """Compute out = start - M x."""
        torch.addcmul(start.all, self.minus_diagonal, x.all, out=out.all)
        _add_neighbours(self.minus_right, self.minus_down, x, out)


def _add_neighbours(right: Tensor, down: Tensor, x: Shifts, out: Shifts) -> None:
    out.but_last.addcmul_(right, x.but_first)
    out.but_first.addcmul_(right, x.but_last)
    out.but_last_row.addcmul_(down, x.but_first_row)
    out.but_first_row.addcmul_(down, x.but_last_row)


class EntryGradient:
    """The gradient of M's diagonal, right and down entries, summed over products y = M x.

    Several products are stacked in a first dimension of `rows`, summed when the gradient is read.
    """

    def __init__(self, like: Tensor, rows: int, width: int) -> None:
        self.diagonal, self.right, self.down = (like.new_zeros(rows, *like.shape) for _ in range(3))
        self._right = self.right.narrow(1, 0, like.shape[0] - 1)
        self._down = self.down.narrow(1, 0, like.shape[0] - width)

    def add(self, dy: Shifts, x: Shifts) -> None:
        """dM_ij += dy_i x_j + dy_j x_i on every edge, and dy_i x_i on the diagonal."""
        self.diagonal.addcmul_(dy.all, x.all)
        self._right.addcmul_(dy.but_last, x.but_first)
        self._right.addcmul_(dy.but_first, x.but_last)
        self._down.addcmul_(dy.but_last_row, x.but_first_row)
        self._down.addcmul_(dy.but_first_row, x.but_last_row)


class StencilDiffusion:
    """X_p F for one block and its gradient: `forward_keeping` keeps the iterates, `backward` walks them back.

    A product y = L r is followed by r <- r - alpha L y. With `detach_init` only the first of these two L
    belongs to the graph (the other is X_0 = alpha L, a constant), and r_0 = X_0 F gives L nothing.
    """

    def __init__(self, matrix: ScaledLaplacian, iterations: int, detach_init: bool) -> None:
        self.matrix, self.terms, self.detach_init = matrix, 2**iterations, detach_init

    def forward(self, F: Tensor) -> Tensor:
        """X_p F, forgetting the iterates."""
        M, width = self.matrix, self.matrix.width
        r, y = Shifts.of(F.new_empty(2, *F.shape), width).unbind()
        M.apply(Shifts.of(F * M.scale, width), r)
        total = r.all.clone()
        for _ in range(1, self.terms):
            M.apply(r, y)
            M.subtract(r, y, r)
            total.add_(r.all)
        return total

    def forward_keeping(self, F: Tensor, iterates: Iterates) -> Tensor:
        """X_p F; the pairs (r_{j-1}, y_j = M r_{j-1}) stay in `iterates` for `backward`."""
        M, width = self.matrix, self.matrix.width
        self.F, self.iterates = F, iterates
        last = Shifts.of(torch.empty_like(F), width)
        r = [*iterates.r[: self.terms - 1], last]
        M.apply(Shifts.of(F * M.scale, width), r[0])
        total = r[0].all.clone()
        for j in range(1, self.terms):
            M.apply(r[j - 1], iterates.y[j - 1])
            M.subtract(r[j - 1], iterates.y[j - 1], r[j])
            total.add_(r[j].all)
        return total

    def backward(self, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients for F (N, B), for the edges (2, N, B) and for lam, after `forward_keeping`."""
        M, width = self.matrix, self.matrix.width
        # From y_j = M r_{j-1}, M receives dy_j = -M dr_j times r_{j-1}; from r_j = r_{j-1} - M y_j it receives
        # -dr_j times y_j: (M dr_j, dr_j) stacked pairs with the kept (r_{j-1}, y_j). The sign waits for the end.
        adjoint = Shifts.of(dout.new_zeros(2, *dout.shape), width)
        M_dr, dr = adjoint.unbind()
        if self.detach_init:
            gradient, left, kept = EntryGradient(dout, 1, width), M_dr, self.iterates.r
        else:
            gradient, left, kept = EntryGradient(dout, 2, width), adjoint, self.iterates.pairs
        dr.all.copy_(dout)
        for pair in reversed(kept[: self.terms - 1]):
            M.apply(dr, M_dr)
            gradient.add(left, pair)
            M.subtract(dr, M_dr, dr)
            dr.all.add_(dout)
        if not self.detach_init:
            # r_0 = sqrt(alpha) M F is a step from zero with y = -sqrt(alpha) F.
            first = torch.stack((torch.zeros_like(self.F), self.F * -M.scale))
            gradient.add(adjoint, Shifts.of(first, width))
        M.apply(dr, M_dr)
        return M_dr.all * M.scale, *self._edges_and_lam(gradient)

    def _edges_and_lam(self, minus_dM: EntryGradient) -> tuple[Tensor, Tensor]:
        """L_ij = 1 - lam E_ij on an edge and L_ii = degree_i (lam - 1), and M = sqrt(alpha) L."""
        M = self.matrix
        right = minus_dM.right.sum(0).mul_(M.masks.right)
        down = minus_dM.down.sum(0).mul_(M.masks.down)
        minus_dL = torch.stack((right, down)).mul_(M.scale)
        dlam = (minus_dL * M.edges).sum() - M.scale * (minus_dM.diagonal.sum(0) * M.masks.degree).sum()
        return minus_dL.mul_(M.lam), dlam
