"""timm's vision transformers."""

from __future__ import annotations

from typing import ClassVar

from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer

from .registry import Architecture, register


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
