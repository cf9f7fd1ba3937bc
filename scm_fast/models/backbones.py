"""Backbones: transformers with a CLS token, by name, and what the localisation model reads from them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import timm
import torch
import torch.nn.functional as F
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import use_reentrant_ckpt
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.pit import PoolingVisionTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ..errors import InputError
from .cls_attention import can_cover, cover_attention, record_cls_rows
from .conformer import VARIANTS as CONFORMERS
from .conformer import Conformer

# VisionTransformer, Eva, Beit, PoolingVisionTransformer or Conformer, which share no base class of their own.
Backbone: TypeAlias = Any

FAMILIES = {
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
    "PiT": "pit_s_224",
    "Conformer": "conformer_small_patch16",
}


class Features(NamedTuple):
    patches: Tensor  # (B, D, H, W), the patch tokens on their grid
    cls: Tensor  # (B, D), the CLS token
    attention: Tensor | None  # (B, H, W), F0; None where no row was computed
    extra_logits: Tensor | None  # (B, classes), of a classifier inside the backbone (Conformer)


def families_text() -> str:
    return "; ".join(f"{family} (e.g. {example})" for family, example in FAMILIES.items())


def _not_covered(name: str, why: str) -> InputError:
    return InputError(f"backbone {name!r} cannot be used: {why}. Families that work: {families_text()}")


def build_backbone(
    name: str,
    num_classes: int,
    image_size: Sequence[int] | None = None,
    options: dict[str, Any] | None = None,
    pretrained: bool = False,
    keep_classifier: bool = False,
) -> Backbone:
    """The network of that name, without its CLS classifier unless `keep_classifier`.

    `options` go to timm, e.g. `{"dynamic_img_size": True}`; `pretrained` asks timm's hub for weights.
    """
    options = dict(options or {})
    if name in CONFORMERS:
        if pretrained:
            raise InputError(
                f"{name} is not on timm's hub: give pretrained= the path of the authors' .pth file"
            )
        return Conformer(**{**CONFORMERS[name], "num_classes": num_classes, **options})
    if not timm.is_model(name.split(".")[0]):
        known = [*timm.list_models(), *CONFORMERS]
        near = [other for other in known if other.startswith(name)][:4]
        near = near or difflib.get_close_matches(name.split(".")[0], known, n=4)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"backbone {name!r} is not a model of timm {timm.__version__}{hint}")
    if image_size is not None:
        options["img_size"] = tuple(image_size)
    try:
        classes = num_classes if keep_classifier else 0
        return timm.create_model(name, pretrained=pretrained, num_classes=classes, **options)
    except TypeError as error:
        # Swin, ResNet, ... do not know img_size or an option: say first that they would not do anyway.
        check_backbone(name, timm.create_model(name, num_classes=0))
        raise InputError(f"backbone {name!r} does not accept these options: {error}") from error
    except (OSError, RuntimeError) as error:
        if not pretrained:
            raise
        raise InputError(
            f"the weights of {name!r} could not be had from timm's hub ({error}). "
            "Give a .safetensors or .pth file instead: --pretrained FILE, in Python pretrained=FILE"
        ) from error


def detach_classifier(backbone: Backbone) -> dict[str, Tensor]:
    """Take the classifier off a timm network; its weight and bias, those of the CLS token if it has two."""
    classifier = backbone.get_classifier()
    weights = (classifier[0] if isinstance(classifier, tuple) else classifier).state_dict()
    backbone.reset_classifier(0)
    return weights


def check_backbone(name: str, backbone: Backbone) -> None:
    """Raise an InputError that says why a network has no CLS map that can be read."""
    if getattr(backbone, "cls_token", None) is None:
        raise _not_covered(name, "it has no CLS token, so there is no CLS attention to localise with")
    if not isinstance(backbone, (VisionTransformer, Eva, Beit, PoolingVisionTransformer, Conformer)):
        raise _not_covered(name, f"{type(backbone).__name__} is not one of the kinds that are covered")
    for index, block in enumerate(transformer_blocks(backbone)):
        attention = getattr(block, "attn", None)
        if attention is None or not can_cover(attention):
            kind = type(block if attention is None else attention).__name__
            raise _not_covered(name, f"the attention of its block {index} ({kind}) is not covered")
    if not isinstance(getattr(backbone, "patch_drop", None), (nn.Identity, type(None))):
        raise InputError(f"backbone {name!r}: patch_drop_rate removes tokens, and the maps need all of them")


def transformer_blocks(backbone: Backbone) -> list[Any]:
    if isinstance(backbone, PoolingVisionTransformer):
        stages: Any = backbone.transformers
        return [block for stage in stages for block in stage.blocks]
    return list(backbone.blocks)


def cover_backbone(backbone: Backbone, layers: Sequence[int] | None, row_in_training: bool) -> None:
    """Make the chosen layers (all if None; negative counts from the end) record their CLS rows."""
    blocks = transformer_blocks(backbone)
    depth = len(blocks)
    if layers is None:
        layers = range(depth)
    if not layers or not all(-depth <= layer < depth for layer in layers):
        raise InputError(f"attention_layers must be indices of the {depth} layers, got {list(layers)}")
    for layer in sorted({layer % depth for layer in layers}):
        cover_attention(blocks[layer].attn, row_in_training)


def set_grad_checkpointing(backbone: Backbone, enable: bool) -> None:
    if enable and use_reentrant_ckpt():
        # A re-entrant checkpoint runs the forward without a graph, and the rows would lose their gradient.
        raise InputError(
            "activation checkpointing needs timm's non-reentrant mode: unset TIMM_REENTRANT_CKPT"
        )
    if enable and isinstance(backbone, PoolingVisionTransformer):
        raise InputError("PiT does not support activation checkpointing")
    backbone.set_grad_checkpointing(enable)


def channel_statistics(backbone: Backbone) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Channel mean and standard deviation of the images that the network was trained with."""
    cfg = getattr(backbone, "pretrained_cfg", None) or {}
    return tuple(cfg.get("mean", IMAGENET_DEFAULT_MEAN)), tuple(cfg.get("std", IMAGENET_DEFAULT_STD))


def default_image_size(backbone: Backbone) -> tuple[int, int]:
    """(height, width) that the network was built for."""
    size = getattr(getattr(backbone, "patch_embed", None), "img_size", None)
    if size is None:
        size = (getattr(backbone, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))[1:]
    return int(size[0]), int(size[1])


def check_whole_patches(backbone: Backbone, what: str, height: int, width: int) -> None:
    """Raise an InputError for a size with pixels beyond the last whole patch: no map would show them."""
    if isinstance(backbone, PoolingVisionTransformer):  # its patches overlap
        return
    conformer = isinstance(backbone, Conformer)
    patch = backbone.patch_size if conformer else backbone.patch_embed.patch_size[0]
    padded = not conformer and backbone.patch_embed.dynamic_img_pad
    if (height % patch or width % patch) and not padded:
        whole = " x ".join(str(-(-size // patch) * patch) for size in (height, width))
        raise InputError(
            f"{what} {height} x {width}: both must be multiples of {patch}, the patch; take {whole}"
        )


def check_images(backbone: Backbone, images: Tensor, size: tuple[int, int], channels: int) -> None:
    """Raise an InputError if the network cannot take the images; `size` is what it was built for."""
    if images.ndim != 4 or images.shape[1] != channels or not images.is_floating_point():
        raise InputError(
            f"images must be a normalised float tensor (B, {channels}, height, width), "
            f"got {images.dtype} {tuple(images.shape)}"
        )
    height, width = images.shape[-2:]
    if isinstance(backbone, Conformer) or getattr(backbone, "dynamic_img_size", False):
        check_whole_patches(backbone, "images are", height, width)
    elif (height, width) != size:
        raise InputError(
            f"images are {height} x {width}, but this model takes {size[0]} x {size[1]}: resize them, or "
            f"create_model(..., image_size=({height}, {width}))"
        )


def extract_features(backbone: Backbone, images: Tensor) -> Features:
    """Images (B, 3, height, width) to patch tokens, CLS token and attention map."""
    if isinstance(backbone, PoolingVisionTransformer):
        return _pit_features(backbone, images)
    extra_logits = None
    with record_cls_rows() as rows:
        if isinstance(backbone, Conformer):
            tokens, extra_logits = backbone.forward_features(images)
            grid = images.shape[-2] // backbone.patch_size, images.shape[-1] // backbone.patch_size
            prefix = 1
        else:
            # Networks that pool before their last norm keep it as fc_norm; here it is applied to each token.
            tokens = backbone.fc_norm(backbone.forward_features(images))
            grid = backbone.patch_embed.dynamic_feat_size(tuple(images.shape[-2:]))
            prefix = backbone.num_prefix_tokens
    patches = tokens[:, prefix:].transpose(1, 2).unflatten(2, grid)
    attention = torch.stack(rows).mean(0)[:, prefix:].unflatten(1, grid) if rows else None
    return Features(patches, tokens[:, 0], attention, extra_logits)


def _pit_features(backbone: PoolingVisionTransformer, images: Tensor) -> Features:
    """PiT halves its grid between stages: earlier attention maps are averaged down to the last grid."""
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
