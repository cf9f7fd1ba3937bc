"""The Newton-Schulz chain on dense matrices: X_0 = alpha L^T, X_{k+1} = X_k (2I - L X_k).

`newton_schulz(L)` gives the approximate inverse X_p (B, N, N) of any L, two products an iteration.

`newton_schulz_apply(L, F)` gives X_p F (B, N) at one product an iteration. With R_k = I - L X_k:

    R_{k+1} = R_k^2,   X_p = X_0 (I + R_{p-1}) ... (I + R_0)

and R_0 = I - alpha L L^T is symmetric for any L. The chain runs on the complement P_k = I - R_k = L X_k,

    P_{k+1} = 2 P_k - P_k P_k,   w_{k+1} = 2 w_k - P_k w_k,   w_0 = F,   X_p F = X_0 w_p

because P of a small eigenvalue is small and keeps its digits where R = 1 - P rounds them away: at p = 16 in
float32 this form is more than ten times as accurate as squaring R, for the same work.

Both backward passes are chains of products as well. Backward of the second, g = dout, G_k = dP_k:

    dw_p = alpha L g,   dw_k = 2 dw_{k+1} - P_k dw_{k+1}
    G_k = 2 G_{k+1} - G_{k+1} P_k - P_k G_{k+1} - dw_{k+1} w_k^T
    dL = alpha G_0 L,  and unless X_0 is detached  + alpha (G_0^T L + w_p g^T)

Only G + G^T enters when X_0 is not detached; it is symmetric, so half of each product is computed.
With `keep_iterates` the P_k are kept for the backward pass, otherwise they are computed again there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError
from ._dispatch import custom_op, kernels, op_backend
from .chains import (
    Products,
    TorchProducts,
    complement_chain,
    complement_chain_backward,
    inverse_chain,
    inverse_chain_backward,
    kept_iterates,
    times,
)


def _check(L: Tensor, iterations: int, alpha: float) -> None:
    if L.ndim != 3 or L.shape[1] != L.shape[2] or L.numel() == 0:
        raise InputError(f"L must have shape (B, N, N), got {tuple(L.shape)}")
    if L.dtype not in (torch.float32, torch.float64):
        raise InputError(f"L must be float32 or float64, got {L.dtype}")
    if iterations < 0:
        raise InputError(f"iterations must not be negative, got {iterations}")
    if not alpha > 0:
        raise InputError(f"alpha must be positive, got {alpha}")


def newton_schulz(
    L: Tensor,
    iterations: int,
    alpha: float,
    detach_init: bool = False,
    keep_iterates: bool = True,
    backend: str = "auto",
) -> Tensor:
    """X_p (B, N, N) of L (B, N, N)."""
    _check(L, iterations, alpha)
    name = op_backend("newton_schulz", backend, L.device)
    return newton_schulz_op(L, iterations, alpha, detach_init, keep_iterates, name)[0]


def newton_schulz_apply(
    L: Tensor,
    F: Tensor,
    iterations: int,
    alpha: float,
    detach_init: bool = False,
    keep_iterates: bool = True,
    backend: str = "auto",
) -> Tensor:
    """X_p F (B, N) of L (B, N, N) and F (B, N)."""
    _check(L, iterations, alpha)
    if F.shape != L.shape[:2] or F.dtype != L.dtype or F.device != L.device:
        raise InputError(
            f"F must be {L.dtype} of shape {tuple(L.shape[:2])} on {L.device}, "
            f"got {F.dtype} {tuple(F.shape)} on {F.device}"
        )
    name = op_backend("newton_schulz", backend, L.device)
    return newton_schulz_apply_op(L, F, iterations, alpha, detach_init, keep_iterates, name)[0]


def _products(backend: str) -> Products:
    return kernels("newton_schulz").TritonProducts() if backend == "triton" else TorchProducts()


def _iterates(L: Tensor, iterations: int, keep: bool) -> Tensor:
    return L.new_empty(iterations if keep else min(iterations, 2), *L.shape)


@custom_op("newton_schulz")
def newton_schulz_op(
    L: Tensor, iterations: int, alpha: float, detach_init: bool, keep_iterates: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """X_p, and X_0 ... X_{p-1} (p, B, N, N) for the backward pass: none of them when they are not kept."""
    iterates = _iterates(L, iterations, keep_iterates)
    X = inverse_chain(L, iterations, alpha, iterates, _products(backend))
    return X, iterates if keep_iterates else L.new_empty(0)


@custom_op("newton_schulz_backward")
def newton_schulz_backward_op(
    dX: Tensor, L: Tensor, iterates: Tensor, iterations: int, alpha: float, detach_init: bool, backend: str
) -> Tensor:
    products = _products(backend)

    def recompute(images: slice, buffer: Tensor) -> Tensor:
        return inverse_chain(L[images], iterations, alpha, buffer, products)

    dL = L.new_empty(L.shape)
    for images, kept in kept_iterates(L, iterates, iterations, recompute):
        dL[images] = inverse_chain_backward(dX[images], L[images], kept, alpha, detach_init, products)
    return dL


@custom_op("newton_schulz_apply")
def newton_schulz_apply_op(
    L: Tensor,
    F: Tensor,
    iterations: int,
    alpha: float,
    detach_init: bool,
    keep_iterates: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """X_p F, and P_0 ... P_{p-1} (p, B, N, N) for the backward pass: none of them when they are not kept."""
    iterates = _iterates(L, iterations, keep_iterates)
    w = complement_chain(L, F, iterations, alpha, iterates, _products(backend))
    return alpha * times(L.mT, w), iterates if keep_iterates else L.new_empty(0)


@custom_op("newton_schulz_apply_backward")
def newton_schulz_apply_backward_op(
    dout: Tensor,
    L: Tensor,
    F: Tensor,
    iterates: Tensor,
    iterations: int,
    alpha: float,
    detach_init: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    products = _products(backend)

    def recompute(images: slice, buffer: Tensor) -> Tensor:
        return complement_chain(L[images], F[images], iterations, alpha, buffer, products)

    dL, dF = L.new_empty(L.shape), F.new_empty(F.shape)
    for images, kept in kept_iterates(L, iterates, iterations, recompute):
        dL[images], dF[images] = complement_chain_backward(
            dout[images], L[images], F[images], kept, alpha, detach_init, products
        )
    return dL, dF


@newton_schulz_op.register_fake
def _(L, iterations, alpha, detach_init, keep_iterates, backend):
    return L.new_empty(L.shape), L.new_empty((iterations, *L.shape) if keep_iterates else 0)


@newton_schulz_backward_op.register_fake
def _(dX, L, iterates, iterations, alpha, detach_init, backend):
    return L.new_empty(L.shape)


@newton_schulz_apply_op.register_fake
def _(L, F, iterations, alpha, detach_init, keep_iterates, backend):
    return L.new_empty(F.shape), L.new_empty((iterations, *L.shape) if keep_iterates else 0)


@newton_schulz_apply_backward_op.register_fake
def _(dout, L, F, iterates, iterations, alpha, detach_init, backend):
    return L.new_empty(L.shape), F.new_empty(F.shape)


def _setup_inverse(ctx, inputs, output):
    L, ctx.iterations, ctx.alpha, ctx.detach_init, _, ctx.backend = inputs
    ctx.save_for_backward(L, output[1])
    ctx.mark_non_differentiable(output[1])


def _inverse_autograd(ctx, dX, _):
    arguments = (ctx.iterations, ctx.alpha, ctx.detach_init, ctx.backend)
    return newton_schulz_backward_op(dX, *ctx.saved_tensors, *arguments), *(None,) * 5


def _setup_apply(ctx, inputs, output):
    L, F, ctx.iterations, ctx.alpha, ctx.detach_init, _, ctx.backend = inputs
    ctx.save_for_backward(L, F, output[1])
    ctx.mark_non_differentiable(output[1])


def _apply_autograd(ctx, dout, _):
    arguments = (ctx.iterations, ctx.alpha, ctx.detach_init, ctx.backend)
    return *newton_schulz_apply_backward_op(dout, *ctx.saved_tensors, *arguments), *(None,) * 5


newton_schulz_op.register_autograd(_inverse_autograd, setup_context=_setup_inverse)
newton_schulz_apply_op.register_autograd(_apply_autograd, setup_context=_setup_apply)
