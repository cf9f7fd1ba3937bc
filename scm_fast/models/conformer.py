"""Conformer (Peng et al., ICCV 2021): a convolution branch and a transformer branch that exchange features.

Modules carry the names of the authors' public code, so that their checkpoints load. The transformer branch
has a CLS token and no position embedding (the convolution branch tells positions), so any image size that is
a multiple of the patch size will do.

Shapes: images (B, 3, H, W), convolution maps (B, c, H/s, W/s), tokens (B, 1 + h * w, D).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

_LayerNorm = partial(nn.LayerNorm, eps=1e-6)
_BatchNorm = partial(nn.BatchNorm2d, eps=1e-6)

VARIANTS = {
    "conformer_tiny_patch16": {"patch_size": 16, "channel_ratio": 1, "embed_dim": 384, "num_heads": 6},
    "conformer_small_patch16": {"patch_size": 16, "channel_ratio": 4, "embed_dim": 384, "num_heads": 6},
    "conformer_small_patch32": {"patch_size": 32, "channel_ratio": 4, "embed_dim": 384, "num_heads": 6},
    "conformer_base_patch16": {"patch_size": 16, "channel_ratio": 6, "embed_dim": 576, "num_heads": 9},
}


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions with a shortcut; the narrow map in the middle meets the tokens."""

    def __init__(self, channels_in: int, channels_out: int, stride: int = 1, project: bool = False) -> None:
        super().__init__()
        narrow = channels_out // 4
        self.conv1 = nn.Conv2d(channels_in, narrow, 1, bias=False)
        self.bn1 = _BatchNorm(narrow)
        self.conv2 = nn.Conv2d(narrow, narrow, 3, stride=stride, padding=1, bias=False)
        self.bn2 = _BatchNorm(narrow)
        self.conv3 = nn.Conv2d(narrow, channels_out, 1, bias=False)
        self.bn3 = _BatchNorm(channels_out)
        self.project = project
        if project:
            self.residual_conv = nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False)
            self.residual_bn = _BatchNorm(channels_out)

    def forward(self, x: Tensor, from_tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The block's output and its narrow map, to which `from_tokens` is added before the 3x3."""
        shortcut = self.residual_bn(self.residual_conv(x)) if self.project else x
        x = F.relu(self.bn1(self.conv1(x)))
        if from_tokens is not None:
            x = x + from_tokens
        narrow = F.relu(self.bn2(self.conv2(x)))
        return F.relu(self.bn3(self.conv3(narrow)) + shortcut), narrow


class MapToTokens(nn.Module):
    """A convolution map, averaged to the token grid, as tokens (B, h * w, D)."""

    def __init__(self, channels: int, embed_dim: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv_project = nn.Conv2d(channels, embed_dim, 1)
        self.ln = _LayerNorm(embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(self.conv_project(x), self.stride)
        return F.gelu(self.ln(x.flatten(2).transpose(1, 2)))


class TokensToMap(nn.Module):
    """Patch tokens as a map (B, c, h * stride, w * stride), by nearest neighbour."""

    def __init__(self, embed_dim: int, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv_project = nn.Conv2d(embed_dim, channels, 1)
        self.bn = _BatchNorm(channels)

    def forward(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        x = tokens[:, 1:].transpose(1, 2).unflatten(2, grid)
        x = F.relu(self.bn(self.conv_project(x)))
        return F.interpolate(x, size=(grid[0] * self.stride, grid[1] * self.stride))


class ConvTransBlock(nn.Module):
    """One stage of both branches and the two exchanges between them."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        conv_stride: int,
        token_stride: int,
        trans_block: Block,
        embed_dim: int,
        last: bool,
    ) -> None:
        super().__init__()
        narrow = channels_out // 4
        self.cnn_block = Bottleneck(
            channels_in, channels_out, conv_stride, project=channels_in != channels_out
        )
        self.fusion_block = Bottleneck(channels_out, channels_out, stride=2 if last else 1, project=last)
        self.squeeze_block = MapToTokens(narrow, embed_dim, token_stride)
        self.expand_block = TokensToMap(embed_dim, narrow, token_stride)
        self.trans_block = trans_block
        self.token_stride = token_stride
        self.grad_checkpointing = False

    def forward(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x, narrow = self.cnn_block(x)
        grid = narrow.shape[-2] // self.token_stride, narrow.shape[-1] // self.token_stride
        # The CLS token has no place in the map: it meets itself, as in the authors' network.
        tokens = tokens + torch.cat([tokens[:, :1], self.squeeze_block(narrow)], dim=1)
        if self.grad_checkpointing and self.training:
            tokens = checkpoint(self.trans_block, tokens, use_reentrant=False)
        else:
            tokens = self.trans_block(tokens)
        x, _ = self.fusion_block(x, self.expand_block(tokens, grid))
        return x, tokens


class Conformer(nn.Module):
    """Both branches, with the convolution branch's classifier, whose logits are added to the other's."""

    def __init__(
        self,
        patch_size: int = 16,
        channel_ratio: int = 4,
        embed_dim: int = 384,
        num_heads: int = 6,
        depth: int = 12,
        num_classes: int = 1000,
        drop_path_rate: float = 0.0,
        base_channels: int = 64,
    ) -> None:
        super().__init__()
        self.embed_dim = self.num_features = embed_dim
        self.patch_size = patch_size
        self.depth = depth
        drop_path = torch.linspace(0, drop_path_rate, depth).tolist()
        token_stride = patch_size // 4  # of the token grid over the stem's map
        channels = base_channels * channel_ratio
        stage_depth = depth // 3

        def block(index: int) -> Block:
            norm_layer: Any = _LayerNorm  # timm's hint says a class, its code calls it
            return Block(
                embed_dim, num_heads, qkv_bias=True, drop_path=drop_path[index], norm_layer=norm_layer
            )

        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.conv_1 = Bottleneck(64, channels, project=True)
        self.trans_patch_conv = nn.Conv2d(64, embed_dim, token_stride, stride=token_stride)
        self.trans_1 = block(0)
        channels_in = channels
        for index in range(1, depth):
            stage = index // stage_depth
            channels_out = channels * 2**stage
            stage_block = ConvTransBlock(
                channels_in,
                channels_out,
                conv_stride=2 if channels_in != channels_out else 1,
                token_stride=token_stride // 2**stage,
                trans_block=block(index),
                embed_dim=embed_dim,
                last=index == depth - 1,
            )
            self.add_module(f"conv_trans_{index + 1}", stage_block)
            channels_in = channels_out
        self.trans_norm = nn.LayerNorm(embed_dim)
        self.conv_cls_head = nn.Linear(channels_in, num_classes)
        self._initialise()

    def _initialise(self) -> None:
        trunc_normal_(self.cls_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def stages(self) -> list[ConvTransBlock]:
        """The stages after the first, in order."""
        return [getattr(self, f"conv_trans_{index}") for index in range(2, self.depth + 1)]

    @property
    def blocks(self) -> list[Block]:
        """The transformer blocks, in order."""
        return [self.trans_1, *(stage.trans_block for stage in self.stages)]

    def no_weight_decay(self) -> set[str]:
        return {"cls_token"}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the transformer blocks in the backward pass.

        Not the convolutions: their batch norms would count every batch twice.
        """
        for stage in self.stages:
            stage.grad_checkpointing = enable

    def forward_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised tokens (B, 1 + h * w, D), and the convolution branch's logits (B, classes)."""
        stem = F.max_pool2d(F.relu(self.bn1(self.conv1(images))), 3, stride=2, padding=1)
        x, _ = self.conv_1(stem)
        patches = self.trans_patch_conv(stem).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), patches], dim=1)
        tokens = self.trans_1(tokens)
        for stage in self.stages:
            x, tokens = stage(x, tokens)
        return self.trans_norm(tokens), self.conv_cls_head(x.mean((2, 3)))
