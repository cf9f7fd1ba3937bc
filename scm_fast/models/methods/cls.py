"""A linear classifier on the CLS token, as most networks are trained; its map is F0, whatever the class."""

from __future__ import annotations

from torch import nn

from ...precision import in_single
from ..architectures import Features
from ..localization_model import Localization, LocalizationModel, Method, TrainingOutput
from .registry import register


@register
class Cls(Method):
    name = "cls"
    title = "classifier"
    plain_factors = False
    keeps_classifier = True

    @property
    def has_semantic(self) -> bool:
        return False

    def parts(self, embed_dim: int, num_classes: int, preset: str) -> dict[str, nn.Module]:
        head = nn.Linear(embed_dim, num_classes)
        nn.init.trunc_normal_(head.weight, std=0.02)
        nn.init.zeros_(head.bias)
        return {"head": head}

    def train(self, model: LocalizationModel, features: Features) -> TrainingOutput:
        return TrainingOutput(model.head(features.cls), {})

    def localize(self, model: LocalizationModel, features: Features) -> Localization:
        assert features.attention is not None
        logits = in_single(model.head, features.cls)
        return Localization(logits, features.attention, None, features.patches)
