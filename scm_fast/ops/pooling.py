"""Weighted pooling of a map: S (B, C, H, W), weight (B, H, W) -> pooled (B, C).

    pooled_c = (1/N) sum_n S[c, n] weight[n]

Backward, two products with S and dpooled:

    dweight_n = (1/N) sum_c dpooled_c S[c, n],   dS[c, n] = (1/N) dpooled_c weight[n]

`spatial_calibration` takes the second from `edge_similarity.backward`, which writes dS once for both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..backends import custom_op, implementation, op_backend
from ..errors import InputError
from .diffusion_fields import field_dtype
from .edge_similarity import image_chunks


def pooling(S: Tensor, weight: Tensor, backend: str = "auto") -> Tensor:
    """The mean over the tokens of S * weight, (B, C), in float32 (float64 for a float64 S), as weight must be."""
    if S.ndim != 4 or S.numel() == 0 or not S.is_floating_point():
        raise InputError(f"S must be a non-empty floating-point (B, C, H, W), got {S.dtype} {tuple(S.shape)}")
    expected = (S.shape[0], *S.shape[2:])
    if weight.shape != expected or weight.dtype != field_dtype(S):
        raise InputError(
            f"weight must be {field_dtype(S)} of shape {expected}, got {weight.dtype} {tuple(weight.shape)}"
        )
    return pooling_op(S, weight, op_backend("pooling", backend, S.device))


@custom_op("pooling")
def pooling_op(S: Tensor, weight: Tensor, backend: str) -> Tensor:
    return implementation("pooling", backend).pool(S, weight)


@custom_op("pooling_backward")
def pooling_backward_op(dpooled: Tensor, S: Tensor, weight: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    """dS, in S's dtype and memory layout, and dweight."""
    dS = torch.empty_like(S)
    dS.copy_(dpooled[..., None, None] * (weight / weight[0].numel()).unsqueeze(1))
    return dS, implementation("pooling", backend).pool_weight(S, dpooled)


@pooling_op.register_fake
def _(S, weight, backend):
    return weight.new_empty(S.shape[:2])


@pooling_backward_op.register_fake
def _(dpooled, S, weight, backend):
    return torch.empty_like(S), weight.new_empty(weight.shape)


def _setup_context(ctx, inputs, output):
    S, weight, ctx.backend = inputs
    ctx.save_for_backward(S, weight)


def _autograd_backward(ctx, dpooled):
    return *pooling_backward_op(dpooled, *ctx.saved_tensors, ctx.backend), None


pooling_op.register_autograd(_autograd_backward, setup_context=_setup_context)


def pool(S: Tensor, weight: Tensor) -> Tensor:
    """mean_n S[:, c, n] weight[:, n]: (B, C, H, W), (B, H, W) -> (B, C)."""
    flat = weight.flatten(1).unsqueeze(-1)  # [B, N, 1]
    pooled = weight.new_empty(S.shape[:2])
    for images in image_chunks(S):
        v = S[images].flatten(2).to(weight.dtype)
        pooled[images] = torch.bmm(v, flat[images]).squeeze(-1)
    return pooled.div_(flat.shape[1])


def pool_weight(S: Tensor, dpooled: Tensor) -> Tensor:
    """sum_c dpooled[:, c] S[:, c, n] / N: (B, C, H, W), (B, C) -> (B, H, W)."""
    dweight = dpooled.new_empty(S.shape[0], 1, S[0, 0].numel())
    for images in image_chunks(S):
        v = S[images].flatten(2).to(dpooled.dtype)
        torch.bmm(dpooled[images].unsqueeze(1), v, out=dweight[images])
    return dweight.div_(dweight.shape[-1]).view(S.shape[0], *S.shape[2:])
