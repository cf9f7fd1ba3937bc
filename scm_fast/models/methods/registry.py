"""What a method is: what it adds to a backbone, what it is trained by, and which map it cuts."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

import pydantic
from torch import Tensor, nn

from ...errors import InputError
from .. import backbones
from ..architectures import Backbone, Features
from ..outputs import Localization, TrainingOutput

if TYPE_CHECKING:
    from ..localization_model import LocalizationModel


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
    keeps_classifier: whether its head is a timm network's own classifier, which is then kept.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    row_in_training: ClassVar[bool] = False
    row_in_evaluation: ClassVar[bool] = True
    has_semantic: ClassVar[bool] = True
    keeps_classifier: ClassVar[bool] = False

    def calibrates(self, calibration: Mapping[str, Any]) -> bool:
        """Whether it trains with a SpatialCalibration, if these settings of one are given."""
        return False

    def prepare(self, name: str, backbone: Backbone) -> None:
        """Change the backbone of that name, or raise an InputError if the method cannot use it."""

    def parts(self, embed_dim: int, num_classes: int, preset: str) -> dict[str, nn.Module]:
        """What the model has besides its backbone; one part is called `head`."""
        return {"head": semantic_head(embed_dim, num_classes, preset)}

    def features(self, model: LocalizationModel, images: Tensor) -> Features:
        return backbones.extract_features(model.backbone, images)

    def train(self, model: LocalizationModel, features: Features) -> TrainingOutput:
        return TrainingOutput(model.head(features.patches).mean((2, 3)), {})

    def localize(self, model: LocalizationModel, features: Features) -> Localization:
        semantic = model.head(features.patches)
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


_methods: dict[str, type[Method]] = {}
M = TypeVar("M", bound=Method)


def register(method: type[M]) -> type[M]:
    """Class decorator: makes a method known by its name, with its annotated fields as options."""
    made = pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))(method)
    _methods[method.name] = cast(type[M], made)
    return cast(type[M], made)


def method_names() -> list[str]:
    return sorted(_methods)


def get_method(name: str) -> type[Method]:
    if name not in _methods:
        near = difflib.get_close_matches(str(name), _methods, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"method must be one of {', '.join(method_names())}, got {name!r}{hint}")
    return _methods[name]


def make_method(name: str, options: Mapping[str, Any]) -> Method:
    """The method of that name with its options, or an InputError in a sentence."""
    method = get_method(name)
    known = [option.name for option in dataclasses.fields(method)]
    if not isinstance(options, Mapping):
        raise InputError(f"method_options must be a mapping, as {{area: 0.25}}, got {options!r}")
    if unknown := [str(option) for option in options if option not in known]:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise InputError(f"method {name!r} has no option {', '.join(unknown)}; {has}")
    try:
        return method(**options)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"method {name!r}: {first['loc'][0]}: {first['msg'][0].lower()}{first['msg'][1:]}, "
            f"got {first['input']!r}"
        ) from None


def published_method(state: dict[str, Tensor]) -> tuple[type[Method], Published] | None:
    """Whose training code wrote these weights."""
    for method in _methods.values():
        if (found := method().published(state)) is not None:
            return method, found
    return None


def published_titles() -> str:
    """Of the methods whose authors' files can be read."""
    return ", ".join(m.title for m in _methods.values() if m.published is not Method.published)
