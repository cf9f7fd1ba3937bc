"""`LocalizationModel`: a transformer whose semantic map and attention map say where the object is."""

from __future__ import annotations

import copy
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..spatial_calibration import SpatialCalibration
from . import backbones
from .architectures import Backbone
from .config import ModelConfig


class Localization(NamedTuple):
    """What a model in evaluation mode says about a batch."""

    logits: Tensor  # (B, C)
    attention: Tensor  # F0, (B, H, W): mean over layers and heads of the CLS token's attention
    semantic: Tensor | None  # S0, (B, C, H, W); None for method="cls", which has no map of a class
    tokens: Tensor  # (B, D, H, W), the patch tokens that the maps are made of

    def activation_map(self, classes: Tensor | None = None) -> Tensor:
        """F0 * S0[class] on the grid, for the predicted class if `classes` is None.

        classes: (B,) gives (B, H, W); (B, k), such as `logits.topk(k).indices`, gives (B, k, H, W).
        Without a semantic map it is F0, whatever the class.
        """
        if classes is None:
            classes = self.logits.argmax(1)
        if not isinstance(classes, Tensor):
            raise InputError(f"classes must be a tensor of integers, got {type(classes).__name__}")
        batch, (height, width) = self.attention.shape[0], self.attention.shape[1:]
        if classes.ndim not in (1, 2) or classes.shape[0] != batch:
            raise InputError(
                f"classes must have shape ({batch},) or ({batch}, k), got {tuple(classes.shape)}"
            )
        self._check_range(classes)
        index = classes.view(batch, -1, 1, 1).expand(-1, -1, height, width)  # [B, k, H, W]
        attention = self.attention.unsqueeze(1)
        maps = (
            attention.expand(index.shape)
            if self.semantic is None
            else attention * self.semantic.gather(1, index)
        )
        return maps.squeeze(1) if classes.ndim == 1 else maps

    def _check_range(self, classes: Tensor) -> None:
        """On a GPU an index out of range would end the process's use of it; here it is an InputError."""
        if classes.is_floating_point() or classes.dtype == torch.bool:
            raise InputError(f"classes must be integers, got {classes.dtype}")
        if torch.compiler.is_compiling() or not classes.numel():
            return
        low, high = (int(value) for value in classes.aminmax())
        if low < 0 or high >= self.logits.shape[1]:
            wrong = low if low < 0 else high
            raise InputError(f"classes must be in 0 ... {self.logits.shape[1] - 1}, got {wrong}")


def semantic_head(embed_dim: int, num_classes: int, preset: str) -> nn.Conv2d:
    """3x3 convolution from patch tokens to class maps."""
    head = nn.Conv2d(embed_dim, num_classes, kernel_size=3, padding=1)
    if preset == "paper":  # He; the published code keeps PyTorch's default
        nn.init.kaiming_normal_(head.weight, nonlinearity="relu")
        nn.init.constant_(cast(Tensor, head.bias), 0)
    return head


def linear_head(embed_dim: int, num_classes: int) -> nn.Linear:
    head = nn.Linear(embed_dim, num_classes)
    nn.init.trunc_normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


class LocalizationModel(nn.Module):
    """Backbone, head and, for SCM, the calibration module. Made by `create_model`.

    In training mode a batch of images (B, 3, height, width) gives logits (B, C); in evaluation mode a
    `Localization`, in which the calibration has no part.
    """

    def __init__(
        self,
        config: ModelConfig,
        backbone: Backbone,
        head: nn.Conv2d | nn.Linear,
        calibration: SpatialCalibration | None,
    ) -> None:
        super().__init__()
        self.config = config
        self.backbone: Backbone = backbone
        self.head = head
        self.calibration = calibration

    def forward(self, images: Tensor) -> Tensor | Localization:
        channels = self.config.backbone_options.get("in_chans", 3)
        backbones.check_images(self.backbone, images, self.config.image_size, channels)
        features = backbones.extract_features(self.backbone, images)
        if isinstance(self.head, nn.Linear):
            semantic = None
            logits = self.head(features.cls)
        else:
            semantic = self.head(features.patches)
            if self.training and self.calibration is not None:
                logits = self.calibration(semantic, features.attention).logits
            else:
                logits = semantic.mean((2, 3))
        if features.extra_logits is not None:
            logits = logits + features.extra_logits
        if self.training:
            return logits
        assert features.attention is not None  # covered layers always compute their rows in evaluation mode
        return Localization(logits, features.attention, semantic, features.patches)

    def train(self, mode: bool = True) -> LocalizationModel:
        if mode and self.config.method == "scm" and self.calibration is None:
            raise InputError("this is an inference copy: it has no calibration module to train with")
        return super().train(mode)

    def for_inference(self) -> LocalizationModel:
        """A copy in evaluation mode without the calibration module, for `torch.export` and serving."""
        config = copy.deepcopy(self.config)
        model = LocalizationModel(config, copy.deepcopy(self.backbone), copy.deepcopy(self.head), None)
        backbones.set_grad_checkpointing(model.backbone, False)
        return model.requires_grad_(False).eval()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the transformer blocks in the backward pass instead of keeping their activations."""
        backbones.set_grad_checkpointing(self.backbone, enable)

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that the published recipe does not decay, besides 1-D ones."""
        names: set[str] = self.backbone.no_weight_decay()
        return {f"backbone.{name}" for name in names} | {"calibration.lam", "calibration.beta"}
