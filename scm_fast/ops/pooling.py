"""Weighted pooling of S: two batched matrix-vector products that share one kernel.

    pool:         pooled_c = mean_n S[c, n] weight[n]         (B, C, H, W), (B, H, W) -> (B, C)
    pool_weight:  dweight_n = sum_c dpooled_c S[c, n] / N     (B, C, H, W), (B, C) -> (B, H, W)

The gradient of S itself, an outer product, is written together with the one of `edge_similarity`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._dispatch import kernels
from .edge_similarity import image_chunks


def pool(S: Tensor, weight: Tensor, backend: str) -> Tensor:
    if backend == "triton":
        return kernels("pooling").pool(S, weight)
    flat = weight.flatten(1).unsqueeze(-1)  # [B, N, 1]
    pooled = weight.new_empty(S.shape[:2])
    for images in image_chunks(S):
        v = S[images].flatten(2).to(weight.dtype)
        pooled[images] = torch.bmm(v, flat[images]).squeeze(-1)
    return pooled.div_(flat.shape[1])


def pool_weight(S: Tensor, dpooled: Tensor, backend: str) -> Tensor:
    if backend == "triton":
        return kernels("pooling").pool_weight(S, dpooled)
    dweight = dpooled.new_empty(S.shape[0], 1, S[0, 0].numel())
    for images in image_chunks(S):
        v = S[images].flatten(2).to(dpooled.dtype)
        torch.bmm(dpooled[images].unsqueeze(1), v, out=dweight[images])
    return dweight.div_(dweight.shape[-1]).view(S.shape[0], *S.shape[2:])
