"""The whole module as one op: S (B, C, H, W), F (B, H, W), lam, beta (L,) -> logits, attention, gain.

    edges = edge_similarity(S);   attention, gain = calibration(F, edges);   logits = mean_n S[:, :, n] gain[n]

Of S only the edges and one weighted pooling are taken, so the forward pass reads it twice, and the backward
pass reads it twice and writes dS once: the pooling's share of dS is added where the edges' share is written.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._dispatch import custom_op, kernels
from .calibration import calibration_backward_op, calibration_op, fused
from .edge_similarity import edge_similarity_backward_op, edge_similarity_op
from .fields import field_dtype
from .pooling import pool, pool_weight


@custom_op("spatial_calibration")
def spatial_calibration_op(
    S: Tensor,
    F: Tensor,
    lam: Tensor,
    beta: Tensor,
    iterations: Sequence[int],
    dense: Sequence[bool],
    alpha: float,
    detach_init: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """logits (B, C), attention, gain (B, H, W), and for the backward pass f, edges and inverse norms."""
    edges, inverse_norm = edge_similarity_op(S, backend)
    attention, gain, f = calibration_op(F, edges, lam, beta, iterations, dense, alpha, detach_init, backend)
    return pool(S, gain, backend), attention, gain, f, edges, inverse_norm


@custom_op("spatial_calibration_backward")
def spatial_calibration_backward_op(
    S: Tensor,
    F: Tensor,
    lam: Tensor,
    beta: Tensor,
    gain: Tensor,
    f: Tensor,
    edges: Tensor,
    inverse_norm: Tensor,
    dlogits: Tensor | None,
    dattention: Tensor | None,
    dgain: Tensor | None,
    iterations: Sequence[int],
    dense: Sequence[bool],
    alpha: float,
    detach_init: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dS, dF, dlam and dbeta, each in its input's dtype; a gradient that is None is zero."""
    if dlogits is not None:
        pooled = pool_weight(S, dlogits, backend)
        dgain = pooled if dgain is None else dgain + pooled
    weight = None if dlogits is None else gain
    if fused(F, edges.dtype, dense, backend):
        dF, dedges, shares = kernels("calibration").backward(
            F, edges, lam, beta, f, dattention, dgain, iterations, alpha, detach_init
        )
        dS, dlam, dbeta = kernels("edge_similarity").backward(
            dedges, S, edges, inverse_norm, weight, dlogits, shares, (lam, beta)
        )
        return dS, dF, dlam, dbeta
    settings = (iterations, dense, alpha, detach_init, backend)
    dF, dedges, dlam, dbeta = calibration_backward_op(F, edges, lam, beta, f, dattention, dgain, *settings)
    dS = edge_similarity_backward_op(dedges, S, edges, inverse_norm, weight, dlogits, backend)
    return dS, dF, dlam, dbeta


@spatial_calibration_op.register_fake
def _(S, F, lam, beta, iterations, dense, alpha, detach_init, backend):
    B, C, H, W = S.shape
    shapes = ((B, C), (B, H, W), (B, H, W), (B, len(iterations), H, W), (B, 2, H, W), (B, H, W))
    return tuple(S.new_empty(shape, dtype=field_dtype(S)) for shape in shapes)


@spatial_calibration_backward_op.register_fake
def _(S, F, lam, beta, *_):
    return torch.empty_like(S), *(x.new_empty(x.shape) for x in (F, lam, beta))


def _setup_context(ctx, inputs, output):
    _, _, gain, f, edges, inverse_norm = output
    ctx.save_for_backward(*inputs[:4], gain, f, edges, inverse_norm)
    ctx.settings = inputs[4:]
    ctx.mark_non_differentiable(f, edges, inverse_norm)
    ctx.set_materialize_grads(False)


def _autograd_backward(ctx, dlogits, dattention, dgain, *_):
    gradients = spatial_calibration_backward_op(*ctx.saved_tensors, dlogits, dattention, dgain, *ctx.settings)
    return *gradients, *(None for _ in ctx.settings)


spatial_calibration_op.register_autograd(_autograd_backward, setup_context=_setup_context)
