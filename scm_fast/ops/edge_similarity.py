"""Cosine similarity of neighbouring tokens: S (B, C, H, W) -> edges (B, 2, H, W).

    E_ij = <v_i, v_j> / (|v_i| |v_j|),   v_i = S[:, :, i]

edges[:, 0] belongs to a token and its right neighbour, edges[:, 1] to a token and the one below; 0 where there
is none. A zero vector has similarity 0 with all, and receives no gradient. Backward, with u = v / |v|:

    dv_i = (1/|v_i|) [ sum_j dE_ij u_j - (sum_j dE_ij E_ij) u_i ]        j over the neighbours of i
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..backends import custom_op, implementation, op_backend
from ..errors import InputError
from .diffusion_fields import field_dtype

# Elements of S that the torch implementation takes at a time, so that products stay in the cache.
_CHUNK = 1 << 18


def image_chunks(S: Tensor) -> list[slice]:
    """Slices of the batch whose share of S (B, C, H, W) has about _CHUNK elements."""
    step = max(1, _CHUNK // S[0].numel()) if S.device.type == "cpu" else S.shape[0]
    return [slice(start, start + step) for start in range(0, S.shape[0], step)]


def edge_similarity(S: Tensor, backend: str = "auto") -> Tensor:
    """Cosines (B, 2, H, W) on the right and down edges of the token grid, in float32 (float64 for float64)."""
    if S.ndim != 4 or S.numel() == 0 or not S.is_floating_point():
        raise InputError(f"S must be a non-empty floating-point (B, C, H, W), got {S.dtype} {tuple(S.shape)}")
    return edge_similarity_op(S, op_backend("edge_similarity", backend, S.device))[0]


@custom_op("edge_similarity")
def edge_similarity_op(S: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    """Returns the edges and the inverse norms (B, H, W), 0 for a zero vector, which the backward needs."""
    return implementation("edge_similarity", backend).forward(S)


@custom_op("edge_similarity_backward")
def edge_similarity_backward_op(
    dedges: Tensor, S: Tensor, edges: Tensor, inverse_norm: Tensor, backend: str
) -> Tensor:
    """dS (B, C, H, W), in S's dtype and memory layout."""
    return implementation("edge_similarity", backend).backward(dedges, S, edges, inverse_norm)


@edge_similarity_op.register_fake
def _(S, backend):
    B, _, H, W = S.shape
    dtype = field_dtype(S)
    return S.new_empty(B, 2, H, W, dtype=dtype), S.new_empty(B, H, W, dtype=dtype)


@edge_similarity_backward_op.register_fake
def _(dedges, S, *_):
    return torch.empty_like(S)


def _setup_context(ctx, inputs, output):
    S, ctx.backend = inputs
    ctx.save_for_backward(S, *output)
    ctx.mark_non_differentiable(output[1])


def _autograd_backward(ctx, dedges, _):
    return edge_similarity_backward_op(dedges, *ctx.saved_tensors, ctx.backend), None


edge_similarity_op.register_autograd(_autograd_backward, setup_context=_setup_context)


def forward(S: Tensor) -> tuple[Tensor, Tensor]:
    """The edges (B, 2, H, W) and the inverse norms (B, H, W)."""
    B, _, H, W = S.shape
    edges = S.new_zeros(B, 2, H * W, dtype=field_dtype(S))
    square = torch.empty_like(edges[:, 0])
    for images in image_chunks(S):
        v = S[images].flatten(2).to(edges.dtype)  # [b, C, N]
        square[images] = (v * v).sum(1)
        edges[images, 0, :-1] = (v[..., :-1] * v[..., 1:]).sum(1)
        edges[images, 1, :-W] = (v[..., :-W] * v[..., W:]).sum(1)
    inverse_norm = torch.where(square == 0, 0.0, square.rsqrt())
    # One factor after the other: the product of two inverse norms may overflow.
    edges[:, 0, :-1].mul_(inverse_norm[:, :-1]).mul_(inverse_norm[:, 1:])
    edges[:, 1, :-W].mul_(inverse_norm[:, :-W]).mul_(inverse_norm[:, W:])
    edges = edges.view(B, 2, H, W)
    edges[:, 0, :, -1] = 0  # the flat shift pairs the end of a row with the start of the next
    return edges, inverse_norm.view(B, H, W)


def backward(
    dedges: Tensor,
    S: Tensor,
    edges: Tensor,
    inverse_norm: Tensor,
    weight: Tensor | None = None,
    dpooled: Tensor | None = None,
) -> Tensor:
    """dS (B, C, H, W), in S's dtype and memory layout.

    With `weight` (B, H, W) and `dpooled` (B, C), the gradient of `pooling` is added in the same pass, so that dS
    is written once.
    """
    H, W = S.shape[2:]
    inverse = inverse_norm.flatten(1).unsqueeze(1)  # [B, 1, N]
    right, down, own = (c.unsqueeze(1) for c in _edge_terms(dedges, edges))
    # |v_i| dv_i takes so much of v_i itself and of its four neighbours. The last factor, 1/|v_i|, comes at the
    # end: the product of two inverse norms may overflow.
    own = own * inverse
    of_right, of_left = right * inverse[..., 1:], right * inverse[..., :-1]
    of_lower, of_upper = down * inverse[..., W:], down * inverse[..., :-W]
    dS = torch.empty_like(S)
    in_place = S.dtype == edges.dtype and _grid_is_flat(S)
    for images in image_chunks(S):
        v = S[images].flatten(2).to(edges.dtype)  # [b, C, N]
        dv = dS[images].flatten(2) if in_place else torch.empty_like(v)
        torch.mul(v, own[images], out=dv)
        dv[..., :-1].addcmul_(of_right[images], v[..., 1:])
        dv[..., 1:].addcmul_(of_left[images], v[..., :-1])
        dv[..., :-W].addcmul_(of_lower[images], v[..., W:])
        dv[..., W:].addcmul_(of_upper[images], v[..., :-W])
        dv.mul_(inverse[images])
        if weight is not None and dpooled is not None:
            dv.addcmul_(
                dpooled[images].unsqueeze(-1), weight[images].flatten(1).unsqueeze(1), value=1 / (H * W)
            )
        if not in_place:
            dS[images] = dv.unflatten(2, (H, W))
    return dS


def _grid_is_flat(S: Tensor) -> bool:
    """Tell whether H and W of S, and of a tensor laid out like it, merge into one dimension without a copy."""
    return S.is_contiguous() or S.is_contiguous(memory_format=torch.channels_last)


def _edge_terms(dedges: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dE on right edges (B, N - 1) and on down edges (B, N - W), and -sum_j dE_ij E_ij (B, N)."""
    W = edges.shape[-1]
    dedges = dedges.clone()
    dedges[:, 0, :, -1] = 0  # there is no edge, whatever its gradient says
    dedges[:, 1, -1, :] = 0
    dedges = dedges.flatten(2)
    product = dedges * edges.flatten(2)
    own = -product.sum(1)
    own[:, 1:] -= product[:, 0, :-1]
    own[:, W:] -= product[:, 1, :-W]
    return dedges[:, 0, :-1], dedges[:, 1, :-W], own
