"""TS-CAM (Gao et al., ICCV 2021): the mean of a semantic map classifies, CLS attention couples to it."""

from __future__ import annotations

from torch import Tensor

from ..localization_model import Method, Published
from .registry import register


@register
class TsCam(Method):
    name = "tscam"
    title = "TS-CAM"

    def published(self, state: dict[str, Tensor]) -> Published | None:
        """A DeiT with a convolution as its head, and nothing else that timm's does not have."""
        head = state.get("head.weight")
        if head is None or head.ndim != 4 or "loc_token" in state or "layers.0.thred" in state:
            return None
        return Published({}, backbone_and_head(state))


def backbone_and_head(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a DeiT and its head under our names."""
    return {name if name.startswith("head.") else f"backbone.{name}": state[name] for name in state}
