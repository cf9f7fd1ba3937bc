"""A transformer computed literally: attention matrices are formed. For tests of what is computed without them."""

import torch
from torch import Tensor


def tokens_and_matrices(network, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Normed tokens (B, N, D), and the attention matrices (B, 3 heads, N, N) of all layers, in one graph."""
    matrices = []
    x = network.norm_pre(network._pos_embed(network.patch_embed(images)))
    for block in network.blocks:
        qkv = block.attn.qkv(block.norm1(x))
        q, k, v = (part.unflatten(-1, (3, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
        matrices.append((q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1))
        x = x + block.ls1(block.attn.proj((matrices[-1] @ v).transpose(1, 2).flatten(2)))
        x = x + block.ls2(block.mlp(block.norm2(x)))
    return network.norm(x), matrices


def assert_equal_gradients(model, found, expected, **tolerance) -> None:
    """Compare gradients of all parameters, in the order of `named_parameters`; None where there is none."""
    for (parameter, _), ours, theirs in zip(model.named_parameters(), found, expected, strict=True):
        assert (ours is None) == (theirs is None), parameter
        if ours is not None:
            torch.testing.assert_close(ours, theirs, msg=parameter, **tolerance)
