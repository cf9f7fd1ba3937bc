"""Backbones: transformers with a CLS token, by name, and what the localisation model reads from them."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Sequence
from typing import Any

import timm
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import use_reentrant_ckpt
from torch import Tensor, nn

from ..errors import InputError
from .architectures import Backbone, Features, all_architectures, architecture_of, find_architecture, variants
from .cls_attention import can_cover, cover_attention
from .hub import hub_or_cache


def families_text() -> str:
    families = [item for architecture in all_architectures() for item in architecture.families.items()]
    return "; ".join(f"{family} (e.g. {example})" for family, example in families)


def _not_covered(name: str, why: str) -> InputError:
    return InputError(f"backbone {name!r} cannot be used: {why}. Families that work: {families_text()}")


# The networks' own, of options that they do not know, or that make no network.
IMPOSSIBLE = (TypeError, ValueError, AssertionError, ArithmeticError)


def _refused(name: str, error: Exception) -> InputError:
    if "dynamic_img_size" in str(error):
        return InputError(
            f"backbone {name!r} takes images of one size only: no dynamic_img_size, and in training "
            "`small_size: null`"
        )
    reason = str(error).partition("\n")[0] or type(error).__name__
    return InputError(f"backbone {name!r} does not accept these options: {reason}")


def any_size_options(name: str) -> dict[str, Any]:
    """Return options for images of any size: timm's networks resample their position embeddings if told to."""
    return {} if name in dict(variants()) else {"dynamic_img_size": True}


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
    own = dict(variants())
    if name in own:
        if pretrained:
            raise InputError(
                f"{name} is not on timm's hub: give pretrained= the path of the authors' .pth file"
            )
        given = {"num_classes": num_classes, **options}
        try:
            return own[name].kinds[0](**{**own[name].variants[name], **given})
        except IMPOSSIBLE as error:
            raise _refused(name, error) from error
    if not timm.is_model(name.split(".")[0]):
        known = [*timm.list_models(), *own]
        near = [other for other in known if other.startswith(name)][:4]
        near = near or difflib.get_close_matches(name.split(".")[0], known, n=4)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"backbone {name!r} is not a model of timm {timm.__version__}{hint}")
    if image_size is not None:
        options["img_size"] = tuple(image_size)
    try:
        classes = num_classes if keep_classifier else 0
        with hub_or_cache() if pretrained else contextlib.nullcontext():
            return timm.create_model(name, pretrained=pretrained, num_classes=classes, **options)
    except (OSError, RuntimeError) as error:  # first: some of the hub's are ValueErrors too
        if not pretrained:
            raise _refused(name, error) from error
        raise InputError(
            f"the weights of {name!r} could not be had from timm's hub ({str(error).splitlines()[0]}). "
            "Give a .safetensors or .pth file instead: --pretrained FILE, in Python pretrained=FILE"
        ) from error
    except IMPOSSIBLE as error:
        # Swin, ResNet, ... do not know img_size or an option: say first that they would not do anyway.
        check_backbone(name, timm.create_model(name, num_classes=0))
        raise _refused(name, error) from error


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
    if find_architecture(backbone) is None:
        raise _not_covered(name, f"{type(backbone).__name__} is not one of the kinds that are covered")
    for index, block in enumerate(transformer_blocks(backbone)):
        attention = getattr(block, "attn", None)
        if attention is None or not can_cover(attention):
            kind = type(block if attention is None else attention).__name__
            raise _not_covered(name, f"the attention of its block {index} ({kind}) is not covered")
    if not isinstance(getattr(backbone, "patch_drop", None), (nn.Identity, type(None))):
        raise InputError(f"backbone {name!r}: patch_drop_rate removes tokens, and the maps need all of them")


def transformer_blocks(backbone: Backbone) -> list[Any]:
    return architecture_of(backbone).blocks(backbone)


def cover_backbone(
    backbone: Backbone,
    layers: Sequence[int] | None,
    row_in_training: bool,
    row_in_evaluation: bool = True,
) -> None:
    """Make the chosen layers (all if None; negative counts from the end) record their CLS rows in these modes."""
    blocks = transformer_blocks(backbone)
    depth = len(blocks)
    if layers is None:
        layers = range(depth)
    if not layers or not all(-depth <= layer < depth for layer in layers):
        raise InputError(f"attention_layers must be indices of the {depth} layers, got {list(layers)}")
    chosen = {layer % depth for layer in layers}
    for layer, block in enumerate(blocks):
        cover_attention(
            block.attn, row_in_training and layer in chosen, row_in_evaluation and layer in chosen
        )


def set_grad_checkpointing(backbone: Backbone, enable: bool) -> None:
    if enable and use_reentrant_ckpt():
        # A re-entrant checkpoint runs the forward without a graph, and the rows would lose their gradient.
        raise InputError(
            "activation checkpointing needs timm's non-reentrant mode: unset TIMM_REENTRANT_CKPT"
        )
    architecture = architecture_of(backbone)
    if architecture.checkpointing:
        backbone.set_grad_checkpointing(enable)
    elif enable:
        raise InputError(f"{', '.join(architecture.families)} does not support activation checkpointing")


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
    patch = architecture_of(backbone).patch_size(backbone)
    if patch is not None and (height % patch or width % patch):
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
    if architecture_of(backbone).takes_any_size(backbone):
        check_whole_patches(backbone, "images are", height, width)
    elif (height, width) != size:
        raise InputError(
            f"images are {height} x {width}, but this model takes {size[0]} x {size[1]}: resize them, or "
            f"create_model(..., image_size=({height}, {width}))"
        )


def extract_features(backbone: Backbone, images: Tensor) -> Features:
    """Images (B, 3, height, width) to patch tokens, CLS token and attention map."""
    return architecture_of(backbone).features(backbone, images)
