"""timm's vision transformers."""

from __future__ import annotations

from typing import ClassVar

import torch
from timm.models import checkpoint_seq
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from ..cls_attention import VitAttention, record_cls_rows
from .registry import Architecture, Backbone, Features, features_on_grid, register


@register
class VisionTransformers(Architecture):
    kinds = (VisionTransformer, Eva, Beit)
    families: ClassVar[dict[str, str]] = {
        "DeiT": "deit_small_patch16_224",
        "DeiT distilled": "deit_small_distilled_patch16_224",
        "DeiT-III": "deit3_small_patch16_224",
        "ViT (AugReg)": "vit_small_patch16_224.augreg_in21k_ft_in1k",
        "DINO": "vit_small_patch16_224.dino",
        "DINOv2": "vit_small_patch14_dinov2",
        "DINOv2 with registers": "vit_small_patch14_reg4_dinov2",
        "DINOv3": "vit_small_patch16_dinov3",
        "EVA02": "eva02_small_patch14_224",
        "BEiT": "beit_base_patch16_224",
        "BEiTv2": "beitv2_base_patch16_224",
        "CLIP": "vit_base_patch16_clip_224",
    }

    def can_append(self, backbone: Backbone) -> bool:
        """Positions of EVA and BEiT are in their attention, which knows those of patches alone."""
        plain = isinstance(backbone, VisionTransformer)
        return plain and all(type(block.attn) is VitAttention for block in backbone.blocks)

    def features_appending(
        self, backbone: Backbone, images: Tensor, token: Tensor, from_cls: bool
    ) -> Features:
        with record_cls_rows() as rows:
            x = backbone._pos_embed(backbone.patch_embed(images))
            appended = x[:, :1] + token if from_cls else token.expand(x.shape[0], -1, -1)
            x = backbone.norm_pre(torch.cat([x, appended], dim=1))
            x = checkpoint_seq(backbone.blocks, x) if backbone.grad_checkpointing else backbone.blocks(x)
            x = backbone.fc_norm(backbone.norm(x))
        grid = backbone.patch_embed.dynamic_feat_size(tuple(images.shape[-2:]))
        return features_on_grid(x[:, :-1], [row[:, :-1] for row in rows], grid, backbone.num_prefix_tokens)
