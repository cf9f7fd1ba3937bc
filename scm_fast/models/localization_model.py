"""`LocalizationModel`: a transformer that is trained on labels and says where the object is, by a `Method`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..precision import single
from ..spatial_calibration import SpatialCalibration
from ..threshold import Threshold
from . import backbones
from .architectures import Backbone, Features
from .config import ModelConfig
from .hub import OnHub


class TrainingOutput(NamedTuple):
    """The loss of a batch is the cross-entropy of the logits plus the sum of `terms`."""

    logits: Tensor  # (B, C), in float32 under autocast too
    terms: dict[str, Tensor]  # what the method adds to the loss, by name; each a mean over the batch


class Localization(NamedTuple):
    """The output of a model in evaluation mode: logits and maps of a batch, in float32 under autocast too."""

    logits: Tensor  # (B, C)
    attention: Tensor  # (B, H, W), the factor of the map that all classes share: often F0
    semantic: Tensor | None  # (B, C, H, W), the factor of each class: S0; None where the map is of no class
    tokens: Tensor  # (B, D, H, W), the patch tokens that the maps are made of

    def activation_map(self, classes: Tensor | None = None) -> Tensor:
        """attention * semantic[class] on the grid, for the predicted class if `classes` is None.

        classes: (B,) gives (B, H, W); (B, k), such as `logits.topk(k).indices`, gives (B, k, H, W).
        Without a semantic map it is the attention, whatever the class.
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

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the probabilities (B, k) and numbers (B, k) of the best classes, best first.

        Of equal logits that of the lower class comes first, as for `argmax`: the first class is the one whose map
        is the map of the image.
        """
        classes = self.logits.argsort(dim=1, descending=True, stable=True)[:, :count]
        return self.logits.softmax(1).gather(1, classes), classes

    def _check_range(self, classes: Tensor) -> None:
        """Raise an InputError for an index out of range, which on a GPU would end the process's use of it."""
        if classes.is_floating_point() or classes.dtype == torch.bool:
            raise InputError(f"classes must be integers, got {classes.dtype}")
        if torch.compiler.is_compiling() or not classes.numel():
            return
        low, high = (int(value) for value in classes.aminmax())
        if low < 0 or high >= self.logits.shape[1]:
            wrong = low if low < 0 else high
            raise InputError(f"classes must be in 0 ... {self.logits.shape[1] - 1}, got {wrong}")


class LocalizationModel(nn.Module, OnHub):
    """Backbone, the parts that a method adds, and the calibration module if it has one. Made by `create_model`.

    In training mode a batch of images (B, 3, height, width) gives a `TrainingOutput`; in evaluation mode a
    `Localization`, in which the calibration has no part. `from_pretrained` and `push_to_hub` are for the Hugging
    Face Hub.
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
        if isinstance(made, TrainingOutput):
            return made._replace(logits=single(made.logits))
        semantic = None if made.semantic is None else single(made.semantic)
        return made._replace(logits=single(made.logits), attention=single(made.attention), semantic=semantic)

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


class Published(NamedTuple):
    """A file of a method's authors: keywords of `create_model`, and its weights under our names."""

    options: dict[str, Any]
    state: dict[str, Tensor]


@dataclass(frozen=True)
class Method:
    """TS-CAM, which other methods override where they differ: a 3x3 convolution on the patch tokens makes a
    semantic map S0 (B, C, H, W), its mean is the logits, and the map of a class is F0 * S0[class].

    Fields of a method are its options, `method_options` of `create_model` and training.

    name: as users give it. title: as people write it.
    row_in_training, row_in_evaluation: whether F0, the CLS token's attention, is needed.
    has_semantic: whether the map depends on the class.
    plain_factors: whether the map's factors are F0 and S0 themselves, which a `Strategy` may combine otherwise.
    keeps_classifier: whether its head is a timm network's own classifier, which is then kept.
    threshold: where its map is cut if nobody chooses otherwise; None where images choose.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    row_in_training: ClassVar[bool] = False
    plain_factors: ClassVar[bool] = True
    keeps_classifier: ClassVar[bool] = False

    @property
    def row_in_evaluation(self) -> bool:
        return True

    @property
    def threshold(self) -> Threshold | None:
        return None

    @property
    def has_semantic(self) -> bool:
        return True

    def measured_options(self, object_share: Callable[[], float]) -> dict[str, Any]:
        """Return the options whose values the training images decide, before the first step.

        object_share: measures how much of an image an object takes, in (0, 1).
        """
        return {}

    def calibrates(self, calibration: Mapping[str, Any]) -> bool:
        """Tell whether it trains with a SpatialCalibration, if these settings of one are given."""
        return False

    def prepare(self, name: str, backbone: Backbone) -> None:
        """Change the backbone of that name, or raise an InputError if the method cannot use it."""

    def parts(self, embed_dim: int, num_classes: int, preset: str) -> dict[str, nn.Module]:
        """Return the model's modules besides its backbone; one part is called `head`."""
        return {"head": semantic_head(embed_dim, num_classes, preset)}

    def features(self, model: LocalizationModel, images: Tensor) -> Features:
        return backbones.extract_features(model.backbone, images)

    def train(self, model: LocalizationModel, features: Features) -> TrainingOutput:
        return TrainingOutput(model.head(features.patches).mean((2, 3)), {})

    def localize(self, model: LocalizationModel, features: Features) -> Localization:
        semantic = single(model.head(features.patches))
        assert features.attention is not None  # it is computed in evaluation mode
        return Localization(semantic.mean((2, 3)), features.attention, semantic, features.patches)

    def published(self, state: dict[str, Tensor]) -> Published | None:
        """The file of the authors' training code with these weights; None if it is not of this method."""
        return None


def semantic_head(embed_dim: int, num_classes: int, preset: str) -> nn.Conv2d:
    """3x3 convolution from patch tokens to class maps."""
    head = nn.Conv2d(embed_dim, num_classes, kernel_size=3, padding=1)
    if preset == "paper":  # He; the published code keeps PyTorch's default
        nn.init.kaiming_normal_(head.weight, nonlinearity="relu")
        nn.init.constant_(cast(Tensor, head.bias), 0)
    return head
