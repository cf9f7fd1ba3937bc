"""X_p F without a matrix: Newton-Schulz as a polynomial of a 5-point stencil, in plain torch.

With M = sqrt(alpha) L (symmetric), R_k = I - L X_k squares itself at every iteration, hence

    X_p F = sum_{j < K} r_j,   r_0 = sqrt(alpha) M F,   r_j = r_{j-1} - M M r_{j-1},   K = 2^p

Fields are (N, B), as in `fields`; the edges come as (2, N, B).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class GridMasks(NamedTuple):
    """Where edges exist, as columns (N, 1) in the fields' dtype."""

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
    """A field (..., N, B) with the views of it that a stencil on a grid of that width pairs up."""

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


class ScaledLaplacian:
    """M = sqrt(alpha) (D - A) o (lam E - 1), as its diagonal and its right and down edges."""

    def __init__(self, edges: Tensor, lam: Tensor, alpha: float, width: int, masks: GridMasks) -> None:
        self.edges, self.lam, self.width, self.masks = edges, lam, width, masks
        self.scale = math.sqrt(alpha)
        self.diagonal = masks.degree * (self.scale * (lam - 1))  # [N, 1]
        weights = (1 - lam * edges).mul_(self.scale)  # [2, N, B]
        self.right = weights[0].mul_(masks.right)[:-1]
        self.down = weights[1].mul_(masks.down)[:-width]

    def apply(self, x: Shifts, out: Shifts) -> None:
        """out = M x."""
        torch.mul(x.all, self.diagonal, out=out.all)
        self._add_neighbours(x, out, 1)

    def subtract(self, x: Shifts, out: Shifts) -> None:
        """out -= M x."""
        out.all.addcmul_(x.all, self.diagonal, value=-1)
        self._add_neighbours(x, out, -1)

    def _add_neighbours(self, x: Shifts, out: Shifts, sign: int) -> None:
        out.but_last.addcmul_(self.right, x.but_first, value=sign)
        out.but_first.addcmul_(self.right, x.but_last, value=sign)
        out.but_last_row.addcmul_(self.down, x.but_first_row, value=sign)
        out.but_first_row.addcmul_(self.down, x.but_last_row, value=sign)


class EdgeGradient:
    """Accumulates the gradient of M's entries from products y = M x, for several x at once.

    `rows` is how many fields are stacked in each product: a (rows, N, B) accumulator is summed once at the end.
    """

    def __init__(self, like: Tensor, rows: int, width: int) -> None:
        shape = (rows, *like.shape)
        self.diagonal = like.new_zeros(shape)
        self.right = like.new_zeros(shape)
        self.down = like.new_zeros(shape)
        self._right = self.right.narrow(1, 0, like.shape[0] - 1)
        self._down = self.down.narrow(1, 0, like.shape[0] - width)

    def add(self, dy: Shifts, x: Shifts, scale: float) -> None:
        """dM_ij += scale * (dy_i x_j + dy_j x_i) on every edge, and scale * dy_i x_i on the diagonal."""
        self.diagonal.addcmul_(dy.all, x.all, value=scale)
        self._right.addcmul_(dy.but_last, x.but_first, value=scale)
        self._right.addcmul_(dy.but_first, x.but_last, value=scale)
        self._down.addcmul_(dy.but_last_row, x.but_first_row, value=scale)
        self._down.addcmul_(dy.but_first_row, x.but_last_row, value=scale)


class StencilDiffusion:
    """X_p F for one block and its gradient: `forward` keeps the iterates, `backward` walks them back.

    A product y = L r is followed by r <- r - alpha L y. With `detach_init` only the first of these two L
    belongs to the graph (the other is X_0 = alpha L, a constant), and r_0 = X_0 F gives L nothing.
    """

    def __init__(self, matrix: ScaledLaplacian, iterations: int, detach_init: bool) -> None:
        self.matrix, self.terms, self.detach_init = matrix, 2**iterations, detach_init

    def forward(self, F: Tensor) -> Tensor:
        """X_p F, forgetting the iterates."""
        M, width = self.matrix, self.matrix.width
        r, y = (Shifts.of(torch.empty_like(F), width) for _ in range(2))
        M.apply(Shifts.of(F * M.scale, width), r)
        total = r.all.clone()
        for _ in range(1, self.terms):
            M.apply(r, y)
            M.subtract(y, r)
            total.add_(r.all)
        return total

    def forward_keeping(self, F: Tensor) -> Tensor:
        """X_p F, keeping the pairs (r_{j-1}, y_j = M r_{j-1}), j = 1 ... K - 1, for `backward`."""
        M, width = self.matrix, self.matrix.width
        iterates = F.new_empty(self.terms - 1, 2, *F.shape)
        self.F, self.pairs = F, [Shifts.of(pair, width) for pair in iterates]
        r = Shifts.of(torch.empty_like(F), width)
        M.apply(Shifts.of(F * M.scale, width), r)
        total = r.all.clone()
        for pair in iterates:
            y = Shifts.of(pair[1], width)
            pair[0].copy_(r.all)
            M.apply(r, y)
            M.subtract(y, r)
            total.add_(r.all)
        return total

    def backward(self, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients for F (N, B), for the edges (2, N, B) and for lam, after `forward_keeping`."""
        M, width = self.matrix, self.matrix.width
        # The adjoint of r_j and M times it, laid out to pair with the kept (r_{j-1}, y_j): from y_j = M r_{j-1}
        # M receives dy_j = -M dr_j times r_{j-1}; from r_j = r_{j-1} - M y_j it receives -dr_j times y_j.
        adjoint = dout.new_empty(2, *dout.shape)
        both = Shifts.of(adjoint, width)
        m_dr, dr = (Shifts.of(row, width) for row in adjoint)
        rows = 1 if self.detach_init else 2
        gradient = EdgeGradient(dout, rows, width)
        paired = Shifts(*(view[:rows] for view in both))
        dr.all.copy_(dout)
        for pair in reversed(self.pairs):
            M.apply(dr, m_dr)
            gradient.add(paired, Shifts(*(view[:rows] for view in pair)), -1.0)
            M.subtract(m_dr, dr)
            dr.all.add_(dout)
        if not self.detach_init:
            # r_0 = sqrt(alpha) M F is a step from zero with y = -sqrt(alpha) F.
            initial = torch.stack((torch.zeros_like(self.F), self.F * -M.scale))
            gradient.add(both, Shifts.of(initial, width), -1.0)
        M.apply(dr, m_dr)
        return m_dr.all * M.scale, *self._edges_and_lam(gradient)

    def _edges_and_lam(self, gradient: EdgeGradient) -> tuple[Tensor, Tensor]:
        """From dM: L_ij = 1 - lam E_ij on an edge and L_ii = degree_i (lam - 1)."""
        M = self.matrix
        right = gradient.right.sum(0).mul_(M.masks.right)
        down = gradient.down.sum(0).mul_(M.masks.down)
        dedges = torch.stack((right, down)).mul_(M.scale)
        dlam = M.scale * (gradient.diagonal.sum(0) * M.masks.degree).sum() - (dedges * M.edges).sum()
        return dedges.mul_(-M.lam), dlam
