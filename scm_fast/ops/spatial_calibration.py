"""The whole module as one op: S (B, C, H, W), F (B, H, W), lam, beta (L,) -> logits, attention, gain.

    edges = edge_similarity(S);   attention, gain = activation_diffusion(F, edges);   logits = pooling(S, gain)

Of S only the edges and one weighted pooling are taken, so the forward pass reads it twice, and the backward
pass reads it twice and writes dS once: the pooling's share of dS is added where the edges' share is written.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..backends import custom_op, implementation
from . import activation_diffusion
from .activation_diffusion import Settings, in_one_launch, plan
from .diffusion_fields import field_dtype


@custom_op("spatial_calibration")
def spatial_calibration_op(
    S: Tensor, F: Tensor, lam: Tensor, beta: Tensor, settings: Settings
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """logits (B, C), attention, gain (B, H, W), and for the backward pass f, edges and inverse norms."""
    edges, inverse_norm = implementation("edge_similarity", settings.backend).forward(S)
    attention, gain, f = activation_diffusion.forward(F, edges, lam, beta, settings)
    logits = implementation("pooling", settings.backend).pool(S, gain)
    return logits, attention, gain, f, edges, inverse_norm


class Saved(NamedTuple):
    """Keep what the backward pass needs: the inputs and some of the outputs."""

    S: Tensor
    F: Tensor
    lam: Tensor
    beta: Tensor
    gain: Tensor
    f: Tensor
    edges: Tensor
    inverse_norm: Tensor


@custom_op("spatial_calibration_backward")
def spatial_calibration_backward_op(
    saved: Saved,
    dlogits: Tensor | None,
    dattention: Tensor | None,
    dgain: Tensor | None,
    settings: Settings,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dS, dF, dlam and dbeta, each in its input's dtype; a gradient that is None is zero."""
    S, F, lam, beta, gain, f, edges, inverse_norm = saved
    if dlogits is not None:
        pooled = implementation("pooling", settings.backend).pool_weight(S, dlogits)
        dgain = pooled if dgain is None else dgain + pooled
    weight = None if dlogits is None else gain
    edge_similarity = implementation("edge_similarity", settings.backend)
    fields = activation_diffusion.Saved(F, edges, lam, beta, f)
    if in_one_launch(plan(settings, F[0].numel(), edges.dtype)):
        dF, dedges, shares = activation_diffusion.fused_backward(fields, dattention, dgain, settings)
        dS, dlam, dbeta = edge_similarity.backward_with_sums(
            dedges, S, edges, inverse_norm, weight, dlogits, shares, lam, beta
        )
    else:
        dF, dedges, dlam, dbeta = activation_diffusion.backward(fields, dattention, dgain, settings)
        dS = edge_similarity.backward(dedges, S, edges, inverse_norm, weight, dlogits)
    return dS, dF, dlam, dbeta


@spatial_calibration_op.register_fake
def _(S, F, lam, beta, iterations, *_):
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
