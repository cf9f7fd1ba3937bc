"""Tell which layer of a backbone each parameter belongs to: for learning rates and for freezing, by layer."""

from __future__ import annotations

from timm.models import group_parameters

from ..errors import InputError
from .localization_model import LocalizationModel


def parameter_layers(model: LocalizationModel) -> dict[str, int]:
    """Return layers by parameter name: 0 for embeddings, 1 ... depth for blocks, the last with the last norm.

    What is not of the backbone is not in it. timm knows the layers of its networks.
    """
    backbone = model.backbone
    if not hasattr(backbone, "group_matcher"):
        raise InputError(
            f"layer_decay and frozen_blocks need a network whose layers timm knows, and {model.config.backbone!r} "
            "is none"
        )
    groups = group_parameters(backbone, backbone.group_matcher(coarse=False), reverse=True)
    # timm's pattern of the last norm takes the one before the blocks for it too, and leaves out that after pooling.
    layers = {name: 0 if name.startswith("norm_pre.") else int(layer) for name, layer in groups.items()}
    after = [name for name in layers if name.startswith("fc_norm.")]
    depth = max(layer for name, layer in layers.items() if name not in after)
    return {f"backbone.{name}": min(layer, depth) for name, layer in layers.items()}


def freeze_blocks(model: LocalizationModel, count: int) -> None:
    """Let the embeddings and the first `count` blocks stay as they are: no gradient is computed for them."""
    layers = parameter_layers(model)
    depth = max(layers.values())
    if count >= depth:
        raise InputError(
            f"frozen_blocks: {count} of {depth} blocks leaves none to train; at most {depth - 1}"
        )
    for name, parameter in model.named_parameters():
        if layers.get(name, depth) <= count:
            parameter.requires_grad_(False)
