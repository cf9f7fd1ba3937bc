"""The Newton-Schulz chain on dense matrices: X_0 = alpha L^T, X_{k+1} = X_k (2I - L X_k).

`newton_schulz(L)` gives the approximate inverse X_p (B, N, N) of any L, two products per iteration.

`newton_schulz_apply(L, F)` gives X_p F (B, N) at one product per iteration. With R_k = I - L X_k:

    R_{k+1} = R_k^2,   X_p = X_0 (I + R_{p-1}) ... (I + R_0)

and R_0 = I - alpha L L^T is symmetric for any L. The chain runs on the complement P_k = I - R_k = L X_k,

    P_{k+1} = 2 P_k - P_k P_k,   w_{k+1} = 2 w_k - P_k w_k,   w_0 = F,   X_p F = X_0 w_p

because P of a small eigenvalue is small and keeps its digits where R = 1 - P rounds them away: at p = 16 in
float32 this form is more than ten times as accurate as squaring R, for the same work.

Both backward passes are chains of products as well, over the kept X_k or P_k. Backward of the second, with
g = dout, G_k = dP_k:

    dw_p = alpha L g,   dw_k = 2 dw_{k+1} - P_k dw_{k+1}
    G_k = 2 G_{k+1} - G_{k+1} P_k - P_k G_{k+1} - dw_{k+1} w_k^T
    dL = alpha G_0 L,  and unless X_0 is detached  + alpha (G_0^T L + w_p g^T)

Only G + G^T enters when X_0 is not detached; it is symmetric, so half of each product is computed.
The chains are written once, over three fused products: those below in torch, or `kernels/newton_schulz.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..backends import custom_op, implementation, op_backend
from ..errors import InputError


def newton_schulz(
    L: Tensor, iterations: int, alpha: float, detach_init: bool = False, backend: str = "auto"
) -> Tensor:
    """X_p (B, N, N) of L (B, N, N)."""
    _check(L, iterations, alpha)
    name = op_backend("newton_schulz", backend, L.device)
    return newton_schulz_op(L, iterations, alpha, detach_init, name)[0]


def newton_schulz_apply(
    L: Tensor, F: Tensor, iterations: int, alpha: float, detach_init: bool = False, backend: str = "auto"
) -> Tensor:
    """X_p F (B, N) of L (B, N, N) and F (B, N)."""
    _check(L, iterations, alpha)
    if F.shape != L.shape[:2] or F.dtype != L.dtype or F.device != L.device:
        raise InputError(
            f"F must be {L.dtype} of shape {tuple(L.shape[:2])} on {L.device}, "
            f"got {F.dtype} {tuple(F.shape)} on {F.device}"
        )
    name = op_backend("newton_schulz", backend, L.device)
    return newton_schulz_apply_op(L, F, iterations, alpha, detach_init, name)[0]


def _check(L: Tensor, iterations: int, alpha: float) -> None:
    if L.ndim != 3 or L.shape[1] != L.shape[2] or L.numel() == 0:
        raise InputError(f"L must have shape (B, N, N), got {tuple(L.shape)}")
    if L.dtype not in (torch.float32, torch.float64):
        raise InputError(f"L must be float32 or float64, got {L.dtype}")
    if iterations < 0:
        raise InputError(f"iterations must not be negative, got {iterations}")
    if not alpha > 0:
        raise InputError(f"alpha must be positive, got {alpha}")


def product(A: Tensor, B: Tensor, scale: float, identity: float, add: Tensor | None, out: Tensor) -> Tensor:
    """Compute out = scale * A B + identity * I + add."""
    torch.baddbmm(out if add is None else add, A, B, beta=0 if add is None else 1, alpha=scale, out=out)
    if identity:
        out.diagonal(dim1=1, dim2=2).add_(identity)
    return out


def complement_step(P: Tensor, w: Tensor, out: Tensor | None) -> Tensor:
    """Returns 2w - P w; `out` receives 2P - P P unless it is None. P is symmetric."""
    if out is not None:
        torch.baddbmm(P, P, P, beta=2, alpha=-1, out=out)
    return 2 * w - times(P, w)


def adjoint_step(G: Tensor, P: Tensor, dw: Tensor, w: Tensor, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Returns 2G - G P - P G - dw w^T and 2dw - P dw. P is symmetric.

    With `symmetric`, G stands for G + G^T and so does what is returned: the last term becomes
    dw w^T + w dw^T, and half of the result is computed.
    """
    half = torch.baddbmm(G, G, P, alpha=-1) - outer(dw, w)
    other = half.mT if symmetric else torch.baddbmm(G, P, G, alpha=-1)
    return half + other, 2 * dw - times(P, dw)


def times(A: Tensor, x: Tensor) -> Tensor:
    """A x."""
    return torch.bmm(A, x.unsqueeze(-1)).squeeze(-1)


def outer(x: Tensor, y: Tensor) -> Tensor:
    """x y^T."""
    return x.unsqueeze(2) * y.unsqueeze(1)


@custom_op("newton_schulz")
def newton_schulz_op(
    L: Tensor, iterations: int, alpha: float, detach_init: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """X_p, and X_0 ... X_{p-1} (p, B, N, N) for the backward pass."""
    products = implementation("newton_schulz", backend)
    iterates = L.new_empty(iterations, *L.shape)
    X = alpha * L.mT.contiguous()
    Y = torch.empty_like(X)
    for kept in iterates:
        kept.copy_(X)
        products.product(L, kept, -1.0, 2.0, None, Y)
        products.product(kept, Y, 1.0, 0.0, None, X)
    return X, iterates


@custom_op("newton_schulz_backward")
def newton_schulz_backward_op(
    dX: Tensor, L: Tensor, iterates: Tensor, alpha: float, detach_init: bool, backend: str
) -> Tensor:
    """dL. With Y_k = 2I - L X_k: dY_k = X_k^T dX_{k+1}, dX_k = dX_{k+1} Y_k^T - L^T dY_k, dL -= dY_k X_k^T."""
    products = implementation("newton_schulz", backend)
    dL, Y, dY = (torch.zeros_like(L, memory_format=torch.contiguous_format) for _ in range(3))
    for X in reversed(iterates.unbind(0)):
        products.product(L, X, -1.0, 2.0, None, Y)
        products.product(X.mT, dX, 1.0, 0.0, None, dY)
        dX = products.product(dX, Y.mT, 1.0, 0.0, None, torch.empty_like(Y))
        dX = products.product(L.mT, dY, -1.0, 0.0, dX, torch.empty_like(Y))
        dL = products.product(dY, X.mT, -1.0, 0.0, dL, torch.empty_like(Y))
    return dL if detach_init else dL.add_(dX.mT, alpha=alpha)


@custom_op("newton_schulz_apply")
def newton_schulz_apply_op(
    L: Tensor, F: Tensor, iterations: int, alpha: float, detach_init: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """X_p F, and P_0 ... P_{p-1} (p, B, N, N) for the backward pass."""
    iterates = L.new_empty(iterations, *L.shape)
    return apply(L, F, iterates, iterations, alpha, backend), iterates


def apply(L: Tensor, F: Tensor, iterates: Tensor, iterations: int, alpha: float, backend: str) -> Tensor:
    """X_p F. P_k is left in iterates[k % len(iterates)]: two are enough for a chain that nobody walks back."""
    products = implementation("newton_schulz", backend)
    if iterations:
        products.product(L, L.mT, alpha, 0.0, None, iterates[0])
    w = F
    for k in range(iterations):
        following = iterates[(k + 1) % len(iterates)] if k + 1 < iterations else None
        w = products.complement_step(iterates[k % len(iterates)], w, following)
    return alpha * times(L.mT, w)


@custom_op("newton_schulz_apply_backward")
def newton_schulz_apply_backward_op(
    dout: Tensor, L: Tensor, F: Tensor, iterates: Tensor, alpha: float, detach_init: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """dL and dF from the kept P_k."""
    return apply_backward(dout, L, F, iterates, alpha, detach_init, backend)


def apply_backward(
    dout: Tensor, L: Tensor, F: Tensor, iterates: Tensor, alpha: float, detach_init: bool, backend: str
) -> tuple[Tensor, Tensor]:
    products = implementation("newton_schulz", backend)
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


@newton_schulz_op.register_fake
def _(L, iterations, *_):
    return L.new_empty(L.shape), L.new_empty(iterations, *L.shape)


@newton_schulz_backward_op.register_fake
def _(dX, L, *_):
    return L.new_empty(L.shape)


@newton_schulz_apply_op.register_fake
def _(L, F, iterations, *_):
    return L.new_empty(F.shape), L.new_empty(iterations, *L.shape)


@newton_schulz_apply_backward_op.register_fake
def _(dout, L, F, *_):
    return L.new_empty(L.shape), F.new_empty(F.shape)


def _setup_inverse(ctx, inputs, output):
    L, _, *ctx.settings = inputs
    ctx.save_for_backward(L, output[1])
    ctx.mark_non_differentiable(output[1])


def _inverse_autograd(ctx, dX, _):
    return newton_schulz_backward_op(dX, *ctx.saved_tensors, *ctx.settings), *(None,) * 4


def _setup_apply(ctx, inputs, output):
    L, F, _, *ctx.settings = inputs
    ctx.save_for_backward(L, F, output[1])
    ctx.mark_non_differentiable(output[1])


def _apply_autograd(ctx, dout, _):
    return *newton_schulz_apply_backward_op(dout, *ctx.saved_tensors, *ctx.settings), *(None,) * 4


newton_schulz_op.register_autograd(_inverse_autograd, setup_context=_setup_inverse)
newton_schulz_apply_op.register_autograd(_apply_autograd, setup_context=_setup_apply)
