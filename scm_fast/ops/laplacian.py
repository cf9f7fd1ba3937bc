"""The calibrated Laplacian as a dense matrix: edges (B, 2, H, W), lam () -> L (B, N, N).

    L = (D - A) o (lam E - 1):   L_ii = degree_i (lam - 1),   L_ij = 1 - lam E_ij on an edge,   0 elsewhere

Only the five diagonals are computed. Backward, from dL:

    dE_ij = -lam (dL_ij + dL_ji),   dlam = sum_i degree_i dL_ii - sum_edges E_ij (dL_ij + dL_ji)
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..backends import custom_op, implementation, op_backend
from ..errors import InputError


def laplacian(edges: Tensor, lam: Tensor, backend: str = "auto") -> Tensor:
    """The dense (B, N, N) matrix of the edge similarities of a token grid."""
    if edges.ndim != 4 or edges.shape[1] != 2 or edges.numel() == 0:
        raise InputError(f"edges must have shape (B, 2, H, W), got {tuple(edges.shape)}")
    if edges.dtype not in (torch.float32, torch.float64):
        raise InputError(f"edges must be float32 or float64, got {edges.dtype}")
    if lam.numel() != 1:
        raise InputError(f"lam must be a single number, got shape {tuple(lam.shape)}")
    return laplacian_op(edges, lam, op_backend("laplacian", backend, edges.device))


@custom_op("laplacian")
def laplacian_op(edges: Tensor, lam: Tensor, backend: str) -> Tensor:
    return implementation("laplacian", backend).forward(edges, lam)


@custom_op("laplacian_backward")
def laplacian_backward_op(dL: Tensor, edges: Tensor, lam: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    """dedges (B, 2, H, W) and dlam, in the shape and dtype of lam."""
    return implementation("laplacian", backend).backward(dL, edges, lam)


@laplacian_op.register_fake
def _(edges, lam, backend):
    B, _, H, W = edges.shape
    return edges.new_empty(B, H * W, H * W)


@laplacian_backward_op.register_fake
def _(dL, edges, lam, backend):
    return edges.new_empty(edges.shape), torch.empty_like(lam)


def _setup_context(ctx, inputs, output):
    edges, lam, ctx.backend = inputs
    ctx.save_for_backward(edges, lam)


def _autograd_backward(ctx, dL):
    return *laplacian_backward_op(dL, *ctx.saved_tensors, ctx.backend), None


laplacian_op.register_autograd(_autograd_backward, setup_context=_setup_context)


def _edge_ends(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Token indices of both ends of all right edges, then of all down edges."""
    index = torch.arange(height * width, device=device).view(height, width)
    return index[:, :-1].flatten(), index[:, 1:].flatten(), index[:-1].flatten(), index[1:].flatten()


def _degree(height: int, width: int, like: Tensor) -> Tensor:
    """Neighbours of each token (N,). Not by `bincount`, whose result's size a GPU has to be waited for."""
    degree = like.new_full((height, width), 4)
    for border in (degree[0], degree[-1], degree[:, 0], degree[:, -1]):
        border -= 1
    return degree.flatten()


def forward(edges: Tensor, lam: Tensor) -> Tensor:
    """L (B, N, N)."""
    B, _, H, W = edges.shape
    lam = lam.to(edges.dtype).view(())
    L = edges.new_zeros(B, H * W, H * W)
    L.diagonal(dim1=1, dim2=2).copy_(_degree(H, W, edges) * (lam - 1))
    left, right, upper, lower = _edge_ends(H, W, edges.device)
    weight = 1 - lam * edges
    across, down = weight[:, 0, :, :-1].flatten(1), weight[:, 1, :-1].flatten(1)
    L[:, left, right] = L[:, right, left] = across
    L[:, upper, lower] = L[:, lower, upper] = down
    return L


def backward(dL: Tensor, edges: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """dedges (B, 2, H, W), and dlam in the shape and dtype of lam."""
    B, _, H, W = edges.shape
    left, right, upper, lower = _edge_ends(H, W, edges.device)
    dedges = edges.new_zeros(edges.shape)
    dedges[:, 0, :, :-1] = (dL[:, left, right] + dL[:, right, left]).view(B, H, W - 1)
    dedges[:, 1, :-1] = (dL[:, upper, lower] + dL[:, lower, upper]).view(B, H - 1, W)
    diagonal = dL.diagonal(dim1=1, dim2=2)
    dlam = (diagonal * _degree(H, W, edges)).sum() - (dedges * edges).sum()
    return dedges.mul_(-lam.to(edges.dtype)), dlam.to(lam.dtype).view(lam.shape)
