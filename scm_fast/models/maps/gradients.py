"""Maps of a class by the gradients of its logit.

GradCAM and LayerCAM are those of the normed tokens that enter the last block's attention: after it the logit of a
CLS classifier depends on no patch any more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..cls_attention import attention_of_heads
from .registry import Pass, register


def _last_tokens(found: Pass, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Patch tokens (B, D, H, W) of the last block, and the gradients of the scores by them."""
    tokens = found.layers[-1].tokens
    (gradient,) = torch.autograd.grad(scores.sum(), tokens, retain_graph=True)
    return found.on_grid(tokens.mT), found.on_grid(gradient.mT)


@register("gradcam", "GradCAM: channels of the last tokens, weighted by their mean gradients", by_class=True)
def gradcam(found: Pass, scores: Tensor) -> Tensor:
    tokens, gradient = _last_tokens(found, scores)
    weights = gradient.mean((2, 3), keepdim=True)
    return (weights * tokens).sum(1).relu()


@register("layercam", "LayerCAM: the last tokens, weighted by their own positive gradients", by_class=True)
def layercam(found: Pass, scores: Tensor) -> Tensor:
    tokens, gradient = _last_tokens(found, scores)
    return (gradient.relu() * tokens).sum(1).relu()


@register("chefer", "rollout of attention weighted by its gradient (Chefer et al., ICCV 2021)", by_class=True)
def chefer(found: Pass, scores: Tensor) -> Tensor:
    """The CLS row of (I + C_L) ... (I + C_1), with C = mean_heads relu(dA * A) and dA = dO v^T.

    dO is the gradient by the layer's output of each head, so no gradient of a matrix goes through the network.
    """
    outputs = [layer.output for layer in found.layers]
    gradients = torch.autograd.grad(scores.sum(), outputs, retain_graph=True)
    query = found.layers[-1].q
    row = query.new_zeros(
        query.shape[0], query.shape[2], dtype=torch.promote_types(query.dtype, torch.float32)
    )
    row[:, 0] = 1
    with torch.no_grad():
        for layer, doutput in zip(reversed(found.layers), reversed(gradients), strict=True):
            heads = [
                torch.einsum("bi,bij->bj", row, (matrix * (doutput[:, head] @ layer.v[:, head].mT)).relu())
                for head, matrix in enumerate(attention_of_heads(layer))
            ]
            row = row + torch.stack(heads).mean(0)
    return found.on_grid(row)
