"""The chains of matrix products behind `newton_schulz`, written once over a backend's fused products.

Matrices are (B, N, N), vectors (B, N). A backend provides the three products of `TorchProducts`.
A chain leaves its k-th matrix in `iterates[k % len(iterates)]`: a buffer of p matrices keeps them all, one of
two serves a chain that nobody walks back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

# Bytes of recomputed iterates that a backward pass holds at a time.
_RECOMPUTE_BYTES = 1 << 26


class Products(Protocol):
    def product(
        self, A: Tensor, B: Tensor, scale: float, identity: float, add: Tensor | None, out: Tensor
    ) -> Tensor:
        """out = scale * A B + identity * I + add."""

    def complement_step(self, P: Tensor, w: Tensor, out: Tensor | None) -> Tensor:
        """Returns 2w - P w; `out` receives 2P - P P unless it is None. P is symmetric."""

    def adjoint_step(
        self, G: Tensor, P: Tensor, dw: Tensor, w: Tensor, symmetric: bool
    ) -> tuple[Tensor, Tensor]:
        """Returns 2G - G P - P G - dw w^T and 2dw - P dw. P is symmetric.

        With `symmetric`, G stands for G + G^T and so does what is returned: the last term becomes
        dw w^T + w dw^T, and half of the result is computed.
        """


class TorchProducts:
    def product(self, A, B, scale, identity, add, out):
        torch.baddbmm(out if add is None else add, A, B, beta=0 if add is None else 1, alpha=scale, out=out)
        if identity:
            out.diagonal(dim1=1, dim2=2).add_(identity)
        return out

    def complement_step(self, P, w, out):
        if out is not None:
            torch.baddbmm(P, P, P, beta=2, alpha=-1, out=out)
        return 2 * w - times(P, w)

    def adjoint_step(self, G, P, dw, w, symmetric):
        half = torch.baddbmm(G, G, P, alpha=-1) - outer(dw, w)
        other = half.mT if symmetric else torch.baddbmm(G, P, G, alpha=-1)
        return half + other, 2 * dw - times(P, dw)


def times(A: Tensor, x: Tensor) -> Tensor:
    """A x."""
    return torch.bmm(A, x.unsqueeze(-1)).squeeze(-1)


def outer(x: Tensor, y: Tensor) -> Tensor:
    """x y^T."""
    return x.unsqueeze(2) * y.unsqueeze(1)


def kept_iterates(
    L: Tensor, iterates: Tensor, iterations: int, recompute: Callable[[slice, Tensor], object]
) -> Iterator[tuple[slice, Tensor]]:
    """All iterates, by slices of the batch: as they were kept, or `recompute(images, buffer)` fills them in."""
    if len(iterates) == iterations:
        yield slice(0, len(L)), iterates
        return
    step = max(1, _RECOMPUTE_BYTES // (iterations * L[0].nbytes))
    for start in range(0, len(L), step):
        images = slice(start, start + step)
        buffer = L.new_empty(iterations, *L[images].shape)
        recompute(images, buffer)
        yield images, buffer


def inverse_chain(L: Tensor, iterations: int, alpha: float, iterates: Tensor, products: Products) -> Tensor:
    """X_p of X_0 = alpha L^T, X_{k+1} = X_k (2I - L X_k); `iterates` holds the X_k before it."""
    X = alpha * L.mT.contiguous()
    Y = torch.empty_like(X)
    for k in range(iterations):
        kept = iterates[k % len(iterates)].copy_(X)
        products.product(L, kept, -1.0, 2.0, None, Y)
        products.product(kept, Y, 1.0, 0.0, None, X)
    return X


def inverse_chain_backward(
    dX: Tensor, L: Tensor, iterates: Tensor, alpha: float, detach_init: bool, products: Products
) -> Tensor:
    """dL. With Y_k = 2I - L X_k: dY_k = X_k^T dX_{k+1}, dX_k = dX_{k+1} Y_k^T - L^T dY_k, dL -= dY_k X_k^T."""
    dL, Y, dY = (torch.zeros_like(L, memory_format=torch.contiguous_format) for _ in range(3))
    for X in reversed(iterates.unbind(0)):
        products.product(L, X, -1.0, 2.0, None, Y)
        products.product(X.mT, dX, 1.0, 0.0, None, dY)
        dX = products.product(dX, Y.mT, 1.0, 0.0, None, torch.empty_like(Y))
        dX = products.product(L.mT, dY, -1.0, 0.0, dX, torch.empty_like(Y))
        dL = products.product(dY, X.mT, -1.0, 0.0, dL, torch.empty_like(Y))
    return dL if detach_init else dL.add_(dX.mT, alpha=alpha)


def complement_chain(
    L: Tensor, F: Tensor, iterations: int, alpha: float, iterates: Tensor, products: Products
) -> Tensor:
    """w_p of w_0 = F, w_{k+1} = 2 w_k - P_k w_k, P_{k+1} = 2 P_k - P_k P_k, P_0 = alpha L L^T."""
    if iterations:
        products.product(L, L.mT, alpha, 0.0, None, iterates[0])
    w = F
    for k in range(iterations):
        following = iterates[(k + 1) % len(iterates)] if k + 1 < iterations else None
        w = products.complement_step(iterates[k % len(iterates)], w, following)
    return w


def complement_chain_backward(
    dout: Tensor,
    L: Tensor,
    F: Tensor,
    iterates: Tensor,
    alpha: float,
    detach_init: bool,
    products: Products,
) -> tuple[Tensor, Tensor]:
    """dL and dF of X_p F = alpha L^T w_p, from the kept P_k; the equations are in `newton_schulz`."""
    w = [F]
    for P in iterates:
        w.append(products.complement_step(P, w[-1], None))
    dw = alpha * times(L, dout)
    dL = torch.zeros_like(L) if detach_init else alpha * outer(w[-1], dout)
    if len(iterates) == 0:
        return dL, dw
    symmetric = not detach_init
    G = -outer(dw, w[-2])
    G = G + G.mT if symmetric else G
    dw = products.complement_step(iterates[-1], dw, None)
    for k in range(len(iterates) - 2, -1, -1):
        G, dw = products.adjoint_step(G, iterates[k], dw, w[k], symmetric)
    return products.product(G, L, alpha, 0.0, dL, torch.empty_like(G)), dw
