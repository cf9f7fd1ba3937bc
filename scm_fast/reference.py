"""The Spatial Calibration Module as the paper writes it: dense, literal, differentiated by autograd.

Every other implementation is tested against this file. It is slow on purpose: each function is an equation,
each matrix is formed, and nothing of the algebra that makes the module cheap is used.

Shapes: batch B, grid H x W, N = H * W tokens, C classes. Matrices are (B, N, N), fields (B, N).
Everything is computed in float32 (float64 where S is), whatever the inputs' dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def divide_or_zero(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, and 0 with zero gradient where the denominator is 0. NaN stays NaN."""
    zero = denominator == 0
    return torch.where(zero, 0.0, numerator / torch.where(zero, 1.0, denominator))


def min_max(x: Tensor) -> Tensor:
    """(x - min) / (max - min) over the last dimension; a constant row becomes zeros."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return divide_or_zero(x - low, high - low)


def similarity(S: Tensor) -> Tensor:
    """E_ij = <v_i, v_j> / (|v_i| |v_j|), v_i = S[:, :, i]: (B, C, N) -> (B, N, N).

    A zero vector is similar to nothing but itself, and receives no gradient.
    """
    square = S.square().sum(1, keepdim=True)
    zero = square == 0
    norm = torch.where(zero, 1.0, square).sqrt()  # the root's slope at 0 is infinite
    unit = torch.where(zero, 0.0, S / norm)  # [B, C, N]
    E = unit.transpose(1, 2) @ unit
    return torch.where(torch.eye(E.shape[-1], dtype=torch.bool, device=E.device), 1.0, E)


def edge_similarity(S: Tensor) -> Tensor:
    """E between a token and its right (0) and lower (1) neighbour: (B, C, H, W) -> (B, 2, H, W).

    Zero where there is no such neighbour.
    """
    B, _, H, W = S.shape
    grid = similarity(S.flatten(2)).view(B, H, W, H, W)
    rows = torch.arange(H, device=S.device)[:, None]
    columns = torch.arange(W, device=S.device)
    edges = grid.new_zeros(B, 2, H, W)
    edges[:, 0, :, :-1] = grid[:, rows, columns[:-1], rows, columns[1:]]
    edges[:, 1, :-1, :] = grid[:, rows[:-1], columns, rows[1:], columns]
    return edges


def similarity_of_edges(edges: Tensor) -> Tensor:
    """E (B, N, N) with the edges (B, 2, H, W) of `edge_similarity`, 1 on the diagonal and 0 elsewhere."""
    B, _, H, W = edges.shape
    index = torch.arange(H * W, device=edges.device).view(H, W)
    E = torch.eye(H * W, dtype=edges.dtype, device=edges.device).repeat(B, 1, 1)
    for ends, values in (
        ((index[:, :-1], index[:, 1:]), edges[:, 0, :, :-1]),
        ((index[:-1], index[1:]), edges[:, 1, :-1]),
    ):
        i, j = (end.flatten() for end in ends)
        E[:, i, j] = E[:, j, i] = values.flatten(1)
    return E


def grid_laplacian(height: int, width: int, like: Tensor) -> Tensor:
    """D - A of the 4-neighbour grid graph, (N, N), in the dtype and on the device of `like`."""
    index = torch.arange(height * width, device=like.device)
    row, column = index // width, index % width
    distance = (row[:, None] - row).abs() + (column[:, None] - column).abs()
    A = (distance == 1).to(like.dtype)
    return torch.diag(A.sum(-1)) - A


def laplacian(E: Tensor, lam: Tensor, grid: tuple[int, int]) -> Tensor:
    """L = (D - A) o (lam E - 1), (B, N, N) -> (B, N, N)."""
    return grid_laplacian(*grid, like=E) * (lam * E - 1)


def newton_schulz(L: Tensor, iterations: int, alpha: float, detach_init: bool = False) -> Tensor:
    """X_0 = alpha L^T, X_{k+1} = X_k (2I - L X_k): the approximate inverse X_p of L, (B, N, N)."""
    I = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    X = alpha * (L.detach() if detach_init else L).mT
    for _ in range(iterations):
        X = X @ (2 * I - L @ X)
    return X


def soft_threshold(diffused: Tensor, F: Tensor, beta: Tensor) -> Tensor:
    """f = minmax(tanhshrink(X_p F / (beta max F))), (B, N)."""
    threshold = beta * F.amax(-1, keepdim=True)
    z = divide_or_zero(diffused, threshold)
    return min_max(z - torch.tanh(z))


def filtered_diffusion(
    E: Tensor,
    F: Tensor,
    lam: Tensor,
    beta: Tensor,
    grid: tuple[int, int],
    iterations: int,
    alpha: float,
    detach_init: bool,
) -> Tensor:
    """f = softthreshold(X_p F) of one block: E (B, N, N), F (B, N) -> (B, N)."""
    X = newton_schulz(laplacian(E, lam, grid), iterations, alpha, detach_init)
    diffused = (X @ F.unsqueeze(-1)).squeeze(-1)
    return soft_threshold(diffused, F, beta)


def diffusion_block(
    S: Tensor,
    F: Tensor,
    lam: Tensor,
    beta: Tensor,
    grid: tuple[int, int],
    iterations: int,
    alpha: float,
    detach_init: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """One activation diffusion block: S (B, C, N), F (B, N) -> S * (1 + f), F + f and f."""
    f = filtered_diffusion(similarity(S), F, lam, beta, grid, iterations, alpha, detach_init)
    return S * (1 + f).unsqueeze(1), F + f, f


def activation_diffusion(
    F: Tensor,
    edges: Tensor,
    lam: Tensor,
    beta: Tensor,
    iterations: Sequence[int],
    alpha: float,
    detach_init: bool,
) -> tuple[Tensor, Tensor]:
    """The stack of blocks on fields: raw F (B, H, W), edges (B, 2, H, W), lam and beta (blocks,).

    Returns attention and gain (B, H, W). All blocks have the similarities of the edges.
    """
    B, _, H, W = edges.shape
    E = similarity_of_edges(edges)
    F = min_max(F.flatten(1).to(edges.dtype))
    lam, beta = lam.to(edges.dtype), beta.to(edges.dtype)
    gain = torch.ones_like(F)
    for block, count in enumerate(iterations):
        f = filtered_diffusion(E, F, lam[block], beta[block], (H, W), count, alpha, detach_init)
        F, gain = F + f, gain * (1 + f)
    return F.view(B, H, W), gain.view(B, H, W)


def pooling(S: Tensor, weight: Tensor) -> Tensor:
    """The mean over the tokens of S * weight: (B, C, H, W), (B, H, W) -> (B, C), in the dtype of weight."""
    return (S.to(weight.dtype) * weight.unsqueeze(1)).mean((2, 3))


def spatial_calibration(
    S: Tensor,
    F: Tensor,
    lam: Tensor,
    beta: Tensor,
    iterations: Sequence[int],
    alpha: float,
    detach_init: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The whole module: S (B, C, H, W), raw F (B, H, W), lam and beta (blocks,).

    Returns logits (B, C), attention (B, H, W), gain (B, H, W) and every block's f (B, blocks, H, W).
    """
    B, _, H, W = S.shape
    dtype = torch.promote_types(S.dtype, torch.float32)
    with torch.autocast(S.device.type, enabled=False):
        S, F = S.flatten(2).to(dtype), min_max(F.flatten(1).to(dtype))
        lam, beta = lam.to(dtype), beta.to(dtype)
        gain, filtered = torch.ones_like(F), []
        for block, count in enumerate(iterations):
            S, F, f = diffusion_block(S, F, lam[block], beta[block], (H, W), count, alpha, detach_init)
            gain = gain * (1 + f)
            filtered.append(f)
        return S.mean(-1), F.view(B, H, W), gain.view(B, H, W), torch.stack(filtered, 1).view(B, -1, H, W)


def cls_row(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """mean_h softmax(scale q_h k_h^T), the row of token 0: (B, heads, N, d) -> (B, N)."""
    return (q @ k.mT * scale).softmax(-1).mean(1)[:, 0]
