"""SAT's spatial token: a learnt token after the patches, whose mask over all tokens scales the attention's values.

With q_s the token's query, in the masked blocks

    z = mean_heads q_s k^T * scale,   m = sigmoid(z),   attention = (softmax(q k^T * scale) * m) v      m: (B, N)

The mask multiplies columns, with no softmax after it, so it may as well multiply the values: (A * m) v = A (m * v).
The fused attention stays as it is and no N x N matrix is formed. The mean over heads makes z one product with the
keys of all heads side by side.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..precision import single
from .cls_attention import MASKS, VitAttention, open_recording


class SpatialToken(nn.Module):
    """A token and its position embedding."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.token = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, embed_dim), std=0.02))
        self.position = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, embed_dim), std=0.02))

    def forward(self) -> Tensor:
        """(1, 1, D)"""
        return self.token + self.position

    def no_weight_decay(self) -> set[str]:
        return {"token", "position"}


def spatial_mask(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The last token's mask over all tokens: q, k (B, heads, N, d) -> (B, N), in float32 or float64."""
    query = q[:, :, -1] * (scale / q.shape[1])  # [B, heads, d]
    keys = k.transpose(1, 2).flatten(2)  # [B, N, heads * d], where they lie if one projection made q, k and v
    scores = (keys @ query.flatten(1).unsqueeze(-1)).squeeze(-1)
    return single(scores).sigmoid()


class MaskedVitAttention(VitAttention):
    """Attention whose values are scaled by the mask of the last token; the mask is recorded."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        spatial = spatial_mask(q, k, self.scale)
        masks = open_recording(MASKS)
        if masks is not None:
            masks.append(spatial)
        return super().attend(q, k, v * spatial.to(v.dtype)[:, None, :, None], mask)


def mask_attention(attention: Any) -> None:
    """Turn a `VitAttention` into a masked one in place, with the same parameters under the same names."""
    assert type(attention) is VitAttention, type(attention)
    attention.__class__ = MaskedVitAttention
