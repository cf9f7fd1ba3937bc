"""TokenCut (Wang et al., CVPR 2022): a normalised cut of the patches by the similarity of their keys.

The keys are centred per image first, which the paper's are not: those of networks that were trained on labels share
a vector so large that all pairs count as similar, and there is nothing to cut.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .registry import Pass, register

SIMILAR = 0.2  # cosine of keys that belong together
FAINT = 1e-5  # the weight of all other pairs


@register("tokencut", "TokenCut: second eigenvector of a normalised cut of the last keys")
def tokencut(found: Pass) -> Tensor:
    """The second smallest solution of (D - E) x = t D x, with the largest entry positive: that part is the object.

    E is 1 for similar keys and FAINT for others, D its row sums.
    """
    layer = found.layers[-1]
    dtype = torch.promote_types(layer.k.dtype, torch.float32)
    keys = layer.k.transpose(1, 2).flatten(2)[:, found.patches].double()
    keys = F.normalize(keys - keys.mean(1, keepdim=True), dim=-1)
    weights = torch.where(keys @ keys.mT > SIMILAR, 1.0, FAINT).double()
    root = weights.sum(-1).rsqrt()  # D^(-1/2)
    identity = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    _, vectors = torch.linalg.eigh(identity - root.unsqueeze(-1) * weights * root.unsqueeze(-2))
    second = root * vectors[..., 1]
    largest = second.gather(1, second.abs().argmax(1, keepdim=True))
    return (second * largest.sign()).unflatten(-1, found.grid).to(dtype)
