"""The interface between a localisation model and a kind of network, and the table of kinds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from ..cls_attention import record_cls_rows

# Of one of the registered kinds, which share no base class of their own.
Backbone: TypeAlias = Any


class Features(NamedTuple):
    patches: Tensor  # (B, D, H, W), the patch tokens on their grid
    cls: Tensor  # (B, D), the CLS token
    attention: Tensor | None  # (B, H, W), F0; None where no row was computed
    extra_logits: Tensor | None  # (B, classes), of a classifier inside the backbone (Conformer)
    own_map: Tensor | None = None  # (B, H, W), what a method reads off the layers itself


class Architecture:
    """A kind of network, read as timm's VisionTransformer is; other kinds override what differs.

    kinds: the network's classes. families: what it is known as, each with the name of an example.
    variants: of a network that timm does not have, keywords of `kinds[0]` by name.
    classifier: the CLS token's, as weight files name it. dropped: other heads in them that have no use here.
    checkpointing: whether its blocks can be computed again in the backward pass.
    same_tokens: whether all its layers have the same tokens.
    """

    kinds: tuple[type[nn.Module], ...]
    families: ClassVar[dict[str, str]]
    variants: ClassVar[dict[str, dict[str, Any]]] = {}
    classifier = "head"
    dropped: tuple[str, ...] = ("head_dist",)
    checkpointing = True
    same_tokens = True

    def blocks(self, backbone: Backbone) -> list[Any]:
        """Transformer blocks in order, each with its attention as `attn`."""
        return list(backbone.blocks)

    def features(self, backbone: Backbone, images: Tensor) -> Features:
        """Images (B, 3, height, width) to patch tokens, CLS token and attention map."""
        with record_cls_rows() as rows:
            tokens = self.tokens(backbone, images)
        grid = backbone.patch_embed.dynamic_feat_size(tuple(images.shape[-2:]))
        return features_on_grid(tokens, rows, grid, backbone.num_prefix_tokens)

    def tokens(self, backbone: Backbone, images: Tensor) -> Tensor:
        tokens = backbone.forward_features(images)
        # Networks that pool before their last norm keep it as fc_norm; here it is applied to each token.
        return backbone.fc_norm(tokens) if hasattr(backbone, "fc_norm") else tokens

    def can_append(self, backbone: Backbone) -> bool:
        """True if `features_appending` can be had."""
        return False

    def features_appending(
        self, backbone: Backbone, images: Tensor, token: Tensor, from_cls: bool
    ) -> Features:
        """Compute `features` with a token (1, 1, D) after the patches that all of them see.

        from_cls: whether the token is what it differs by from the CLS token.
        """
        raise NotImplementedError

    def patch_size(self, backbone: Backbone) -> int | None:
        """Pixels that the image's sides must be multiples of; None if any will do."""
        return None if backbone.patch_embed.dynamic_img_pad else backbone.patch_embed.patch_size[0]

    def takes_any_size(self, backbone: Backbone) -> bool:
        """True if images may be of another size than that which the network was built for."""
        return bool(getattr(backbone, "dynamic_img_size", False))

    def adapt_weights(self, backbone: Backbone, state: dict[str, Tensor], source: str) -> dict[str, Tensor]:
        """The weights of a file for this network: timm's rules for other position grids and older names.

        source: the file, for messages.
        """
        return sys.modules[type(backbone).__module__].checkpoint_filter_fn(state, backbone)


def features_on_grid(
    tokens: Tensor,
    rows: list[Tensor],
    grid: tuple[int, int],
    prefix: int,
    extra_logits: Tensor | None = None,
) -> Features:
    """Tokens (B, prefix + H * W, D), the CLS token first, and CLS rows (B, prefix + H * W) of some layers."""
    patches = tokens[:, prefix:].transpose(1, 2).unflatten(2, grid)
    attention = torch.stack(rows).mean(0)[:, prefix:].unflatten(1, grid) if rows else None
    return Features(patches, tokens[:, 0], attention, extra_logits)


_architectures: list[Architecture] = []


def register(architecture: type[Architecture]) -> type[Architecture]:
    """Class decorator: makes a kind of network known to `create_model`."""
    _architectures.append(architecture())
    return architecture


def all_architectures() -> list[Architecture]:
    return list(_architectures)


def find_architecture(backbone: Backbone) -> Architecture | None:
    for architecture in _architectures:
        if isinstance(backbone, architecture.kinds):
            return architecture
    return None


def architecture_of(backbone: Backbone) -> Architecture:
    """Return the architecture of a network that `check_backbone` let pass."""
    found = find_architecture(backbone)
    assert found is not None, type(backbone)
    return found


def variants() -> Iterator[tuple[str, Architecture]]:
    """Names of the networks that timm does not have."""
    for architecture in _architectures:
        for name in architecture.variants:
            yield name, architecture
