"""PiT halves its grid between stages: earlier attention maps are averaged down to the last grid."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from timm.models.pit import PoolingVisionTransformer
from torch import Tensor

from ..cls_attention import record_cls_rows
from .registry import Architecture, Backbone, Features, register


@register
class Pit(Architecture):
    kinds = (PoolingVisionTransformer,)
    families: ClassVar[dict[str, str]] = {"PiT": "pit_s_224"}
    checkpointing = False
    same_tokens = False

    def blocks(self, backbone: Backbone) -> list[Any]:
        return [block for stage in backbone.transformers for block in stage.blocks]

    def features(self, backbone: Backbone, images: Tensor) -> Features:
        x = backbone.patch_embed(images)
        x = backbone.pos_drop(x + backbone.pos_embed)
        prefix_tokens = backbone.cls_token.expand(len(images), -1, -1)
        maps: list[Tensor] = []
        for stage in backbone.transformers:
            with record_cls_rows() as rows:
                x, prefix_tokens = stage((x, prefix_tokens))
            maps.extend(row[:, prefix_tokens.shape[1] :].unflatten(1, x.shape[-2:]) for row in rows)
        patches = backbone.norm(x.flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, x.shape[-2:])
        attention = None
        if maps:
            resampled = [F.adaptive_avg_pool2d(map_, tuple(x.shape[-2:])) for map_ in maps]
            attention = torch.stack(resampled).mean(0)
        return Features(patches, backbone.norm(prefix_tokens)[:, 0], attention, None)

    def patch_size(self, backbone: Backbone) -> int | None:
        return None  # its patches overlap
