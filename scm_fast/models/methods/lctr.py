"""LCTR (Chen et al., AAAI 2022): a head that mixes four experts by what the CLS token does not attend to.

    U = conv3x3(X (1 - F0)),   r = sigmoid(W1 avgpool(U) + W2 maxpool(U))          r: (B, 4)
    S = sum_e r_e conv(X, K_e) + b,   logits = mean(avgpool3x3(S))

The map is RPAM * relu(S[class]): RPAM, at inference only, is the mean over layers of A[0] A / N, with A the mean
over heads of the attention matrix.

The logits are linear in S, and S is linear in X. So training needs no S: with Z (B, D, 3, 3) the sums over the
patches of X under each tap of the convolution, weighted as the two means do, logits = sum_e r_e <K_e, Z> + b.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import InputError
from ...precision import in_single
from ..architectures import Backbone, Features, architecture_of
from ..cls_attention import AttentionLayer, measure_layers
from ..localization_model import (
    Localization,
    LocalizationModel,
    Method,
    Published,
    TrainingOutput,
    semantic_head,
)
from ..maps.attention import relational_row
from .registry import register

EXPERTS = 4
# Of the head, in the authors' files.
NAMES = {
    "conv3x3.": "head.discover.",
    "CDM.weight": "head.experts",
    "CDM.bias": "head.bias",
    "CDM._routing_fn_two.fc.": "head.by_mean.",
    "CDM._routing_fn_two.fc2.": "head.by_maximum.",
}


class CueDiggingHead(nn.Module):
    """LCTR's CDM."""

    def __init__(self, embed_dim: int, num_classes: int, preset: str) -> None:
        super().__init__()
        heads = [semantic_head(embed_dim, num_classes, preset) for _ in range(EXPERTS)]
        self.experts = nn.Parameter(torch.stack([head.weight.detach() for head in heads]))  # [4, C, D, 3, 3]
        self.bias = heads[0].bias
        self.discover = nn.Conv2d(embed_dim, embed_dim, kernel_size=3, padding=1)
        self.by_mean = nn.Linear(embed_dim, EXPERTS)
        self.by_maximum = nn.Linear(embed_dim, EXPERTS)

    def mixture(self, X: Tensor, F0: Tensor) -> Tensor:
        """Patch tokens (B, D, H, W) and attention (B, H, W) to r (B, 4)."""
        U = self.discover(X * (1 - F0.unsqueeze(1)))
        return (self.by_mean(U.mean((2, 3))) + self.by_maximum(U.amax((2, 3)))).sigmoid()

    def logits(self, X: Tensor, r: Tensor) -> Tensor:
        """(B, C), without the semantic map."""
        weights = pooling_weights(X)
        Z = (X.flatten(2) @ taps(weights)).flatten(1)  # [B, D * 9]
        of_experts = (Z @ self.experts.flatten(0, 1).flatten(1).mT).unflatten(1, (EXPERTS, -1))
        assert self.bias is not None
        return (r.unsqueeze(-1) * of_experts).sum(1) + self.bias * weights.sum()

    def forward(self, X: Tensor, r: Tensor) -> Tensor:
        """S (B, C, H, W), by one convolution with the experts side by side."""
        of_experts = F.conv2d(X, self.experts.flatten(0, 1), padding=1).unflatten(1, (EXPERTS, -1))
        assert self.bias is not None
        return torch.einsum("be,bechw->bchw", r, of_experts) + self.bias[:, None, None]


def pooling_weights(X: Tensor) -> Tensor:
    """(H, W) for X (B, D, H, W): of an entry of S in the mean of its 3x3 averages; what is outside counts as 0."""
    windows = F.avg_pool2d(X.new_ones(1, 1, *X.shape[-2:]), 3, stride=1, padding=1)[0, 0]
    return windows / windows.numel()


def taps(weights: Tensor) -> Tensor:
    """(H * W, 9): the weight of each patch under each tap of a 3x3 convolution whose output is weighted (H, W)."""
    # A patch q is under tap t for the output at q - t.
    return F.unfold(weights[None, None], 3, padding=1)[0].flip(0).mT


@register
class Lctr(Method):
    name = "lctr"
    title = "LCTR"
    row_in_training = True

    def prepare(self, name: str, backbone: Backbone) -> None:
        if not architecture_of(backbone).same_tokens:
            raise InputError(
                f"method 'lctr' averages attention over layers, and those of {name!r} have fewer and fewer tokens. "
                "Families that work: ViT, DeiT, DINO, EVA02, BEiT, CLIP, Conformer"
            )

    def parts(self, embed_dim: int, num_classes: int, preset: str) -> dict[str, nn.Module]:
        return {"head": CueDiggingHead(embed_dim, num_classes, preset)}

    def features(self, model: LocalizationModel, images: Tensor) -> Features:
        """Compute features, in evaluation mode with RPAM as their own map; one layer's matrix exists at a time."""
        if model.training:
            return super().features(model, images)
        with measure_layers(_relational_row) as rows:
            features = super().features(model, images)
        grid = features.patches.shape[-2:]
        prefix = getattr(model.backbone, "num_prefix_tokens", 1)
        return features._replace(own_map=torch.stack(rows).mean(0)[:, prefix:].unflatten(1, tuple(grid)))

    def train(self, model: LocalizationModel, features: Features) -> TrainingOutput:
        mixture = model.head.mixture(features.patches, features.attention)
        return TrainingOutput(model.head.logits(features.patches, mixture), {})

    def localize(self, model: LocalizationModel, features: Features) -> Localization:
        assert features.own_map is not None
        mixture = model.head.mixture(features.patches, features.attention)
        logits = in_single(model.head.logits, features.patches, mixture)
        semantic = model.head(features.patches, mixture).relu()
        return Localization(logits, features.own_map, semantic, features.patches)

    def published(self, state: dict[str, Tensor]) -> Published | None:
        if "CDM.weight" not in state:
            return None
        ours = {}
        for name, value in state.items():
            theirs = next((prefix for prefix in NAMES if name.startswith(prefix)), None)
            ours[f"backbone.{name}" if theirs is None else NAMES[theirs] + name.removeprefix(theirs)] = value
        return Published({}, ours)


@torch.no_grad()
def _relational_row(layer: AttentionLayer) -> Tensor:
    return relational_row(layer)
