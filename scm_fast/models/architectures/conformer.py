"""Conformer, which timm does not have: its transformer branch gives the maps, both branches the logits."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ..cls_attention import record_cls_rows
from ..conformer import VARIANTS, Conformer
from ..weights import notice_dropped
from .registry import Architecture, Backbone, Features, features_on_grid, register


@register
class Conformers(Architecture):
    kinds = (Conformer,)
    families: ClassVar[dict[str, str]] = {"Conformer": "conformer_small_patch16"}
    variants = VARIANTS
    classifier = "trans_cls_head"
    dropped = ()

    def features(self, backbone: Backbone, images: Tensor) -> Features:
        with record_cls_rows() as rows:
            tokens, extra_logits = backbone.forward_features(images)
        grid = images.shape[-2] // backbone.patch_size, images.shape[-1] // backbone.patch_size
        return features_on_grid(tokens, rows, grid, 1, extra_logits)

    def patch_size(self, backbone: Backbone) -> int | None:
        return backbone.patch_size

    def takes_any_size(self, backbone: Backbone) -> bool:
        return True

    def adapt_weights(self, backbone: Backbone, state: dict[str, Tensor], source: str) -> dict[str, Tensor]:
        """The authors' own names; a classifier of the convolution branch for other classes starts anew."""
        ours = backbone.conv_cls_head.state_dict()
        theirs = state.get("conv_cls_head.weight")
        if theirs is None or theirs.shape == ours["weight"].shape:
            return state
        notice_dropped(source, "classifier conv_cls_head", tuple(theirs.shape), tuple(ours["weight"].shape))
        return state | {f"conv_cls_head.{key}": value for key, value in ours.items()}
