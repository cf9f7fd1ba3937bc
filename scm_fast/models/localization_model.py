"""`LocalizationModel`: a transformer that is trained on labels and says where the object is."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..errors import InputError
from ..spatial_calibration import SpatialCalibration
from . import backbones
from .architectures import Backbone
from .config import ModelConfig
from .methods import Method
from .outputs import Localization, TrainingOutput


class LocalizationModel(nn.Module):
    """Backbone, the parts that a method adds, and the calibration module if it has one. Made by `create_model`.

    In training mode a batch of images (B, 3, height, width) gives a `TrainingOutput`; in evaluation mode a
    `Localization`, in which the calibration has no part.
    """

    head: Any  # of the method's parts, the one that all methods have

    def __init__(
        self,
        config: ModelConfig,
        method: Method,
        backbone: Backbone,
        parts: Mapping[str, nn.Module],
        calibration: SpatialCalibration | None,
    ) -> None:
        super().__init__()
        self.config = config
        self.method = method
        self.backbone: Backbone = backbone
        for name, part in parts.items():
            self.add_module(name, part)
        self.calibration = calibration
        self._parts = tuple(parts)

    def forward(self, images: Tensor) -> TrainingOutput | Localization:
        channels = self.config.backbone_options.get("in_chans", 3)
        backbones.check_images(self.backbone, images, self.config.image_size, channels)
        features = self.method.features(self, images)
        made = (self.method.train if self.training else self.method.localize)(self, features)
        if features.extra_logits is not None:
            made = made._replace(logits=made.logits + features.extra_logits)
        return made

    def train(self, mode: bool = True) -> LocalizationModel:
        if mode and self.calibration is None and self.method.calibrates(self.config.calibration):
            raise InputError("this is an inference copy: it has no calibration module to train with")
        return super().train(mode)

    def for_inference(self) -> LocalizationModel:
        """A copy in evaluation mode without the calibration module, for `torch.export` and serving."""
        config, backbone = copy.deepcopy(self.config), copy.deepcopy(self.backbone)
        parts = {name: copy.deepcopy(getattr(self, name)) for name in self._parts}
        model = LocalizationModel(config, self.method, backbone, parts, None)
        backbones.set_grad_checkpointing(model.backbone, False)
        return model.requires_grad_(False).eval()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the transformer blocks in the backward pass instead of keeping their activations."""
        backbones.set_grad_checkpointing(self.backbone, enable)

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that the published recipe does not decay, besides 1-D ones."""
        children: dict[str, Any] = dict(self.named_children())
        sparing = {child: part for child, part in children.items() if hasattr(part, "no_weight_decay")}
        return {f"{child}.{name}" for child, part in sparing.items() for name in part.no_weight_decay()}
