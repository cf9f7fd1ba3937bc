"""Maps of attention alone, whatever the class.

A is the mean over heads of a layer's attention matrix, row 0 that of the CLS token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..cls_attention import AttentionLayer, attention_of_heads, cls_row
from .registry import Pass, register


def through_attention(u: Tensor, layer: AttentionLayer) -> Tensor:
    """u^T A: rows u (B, N) -> (B, N)."""
    heads = [torch.einsum("bi,bij->bj", u, matrix) for matrix in attention_of_heads(layer)]
    return torch.stack(heads).mean(0)


def row_of(layer: AttentionLayer) -> Tensor:
    return cls_row(layer.q, layer.k, layer.scale, layer.mask)


@register("attention", "mean over layers of the CLS token's attention, A[0]")
def attention(found: Pass) -> Tensor:
    return found.on_grid(torch.stack([row_of(layer) for layer in found.layers]).mean(0))


@register("rollout", "attention rollout: the CLS row of the product over layers of (A + I) / 2")
def rollout(found: Pass) -> Tensor:
    row = torch.zeros_like(row_of(found.layers[-1]))
    row[:, 0] = 1
    for layer in reversed(found.layers):
        row = (through_attention(row, layer) + row) / 2
    return found.on_grid(row)


@register("rpam", "LCTR's relational attention: mean over layers of A[0] A / N")
def rpam(found: Pass) -> Tensor:
    rows = [relational_row(layer) for layer in found.layers]
    return found.on_grid(torch.stack(rows).mean(0))


def relational_row(layer: AttentionLayer) -> Tensor:
    """sum_i A[0, i] A[i, j] / N: (B, N)"""
    row = row_of(layer)
    return through_attention(row, layer) / row.shape[1]
