"""SAT (Wu et al., ICCV 2023): a spatial token learns a mask of the object; the mask is the map.

    loss = cross-entropy + |mean(M) - area| + mean(G (1 - G)),   G = smooth(M)

M (B, H, W) is the mean over the last three blocks of the token's mask on the patches. The first term asks for a
mask of a given share of the image, the second for one that is 0 or 1. The map is M, the product of the three
masks, which is what all of them let through, or the geometric mean of the mask and the two factors of SCM's map:

    (M * F0 * max(S0[class], 0)) ** (1/3)

The mask is nearly binary and knows the outline; F0 * S0 is graded and says where in the mask the object is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ... import distributed
from ...errors import InputError
from ...precision import single
from ...threshold import Threshold
from .. import backbones
from ..architectures import Backbone, Features, architecture_of
from ..cls_attention import MASKS, record
from ..localization_model import (
    Localization,
    LocalizationModel,
    Method,
    Published,
    TrainingOutput,
    semantic_head,
)
from ..spatial_token import SpatialToken, mask_attention
from .registry import register
from .tscam import backbone_and_head

MASKED_BLOCKS = 3  # the last ones
NAMES = {"loc_token": "spatial_token.token", "loc_embed": "spatial_token.position"}  # in the authors' files


@register
class Sat(Method):
    """area: the share of the image that an object takes, 0.25 for CUB and 0.35 for ILSVRC in the paper. With
        `measured`, a short training by SCM measures it before the first step.
    fusion: how the map is made: `mean` or `product` of the blocks' masks, or `coupled`, the mean with F0 and S0.
        Training does not depend on it.
    start: what the spatial token is at first: random numbers, as in the paper, or the CLS token, which a pretrained
        network lets attend to the object. The learnt token is then added to the CLS token, for good.
    """

    name = "sat"
    title = "SAT"
    plain_factors = False

    area: Annotated[float, Field(gt=0, lt=1)] | Literal["measured"] = 0.25
    fusion: Literal["mean", "product", "coupled"] = "mean"
    start: Literal["random", "cls"] = "random"

    @property
    def row_in_evaluation(self) -> bool:
        return self.fusion == "coupled"

    @property
    def has_semantic(self) -> bool:
        return self.fusion == "coupled"

    @property
    def threshold(self) -> Threshold:
        """Otsu's for masks, which have two levels; graded maps have more of the object a little below it."""
        return Threshold(0.8 if self.fusion == "coupled" else 1.0, "between")

    def measured_options(self, object_share: Callable[[], float]) -> dict[str, Any]:
        return {"area": round(object_share(), 2)} if self.area == "measured" else {}

    def calibrates(self, calibration: Mapping[str, Any]) -> bool:
        """True if asked for: then the mask takes the place of the attention map in SCM's calibration."""
        return bool(calibration)

    def prepare(self, name: str, backbone: Backbone) -> None:
        if not architecture_of(backbone).can_append(backbone):
            raise InputError(
                f"method 'sat' appends a token to the patches, and {name!r} has no place for one. Families that "
                "work: ViT, DeiT, DINO, DINOv2, CLIP"
            )
        blocks = backbones.transformer_blocks(backbone)
        if len(blocks) < MASKED_BLOCKS:
            raise InputError(f"method 'sat' masks {MASKED_BLOCKS} blocks, and {name!r} has {len(blocks)}")
        for block in blocks[-MASKED_BLOCKS:]:
            mask_attention(block.attn)

    def parts(self, embed_dim: int, num_classes: int, preset: str) -> dict[str, nn.Module]:
        head = semantic_head(embed_dim, num_classes, preset)
        return {"head": head, "spatial_token": SpatialToken(embed_dim)}

    def features(self, model: LocalizationModel, images: Tensor) -> Features:
        """Compute features with the mask as their own map: in training what the loss takes, else what is cut."""
        with record(MASKS) as masks:
            architecture, token = architecture_of(model.backbone), cast(SpatialToken, model.spatial_token)()
            features = architecture.features_appending(model.backbone, images, token, self.start == "cls")
        height, width = features.patches.shape[-2:]
        patches = slice(-1 - height * width, -1)  # between the first tokens and the spatial one
        stacked = torch.stack(masks)
        mask = stacked.prod(0) if self.fusion == "product" and not model.training else stacked.mean(0)
        return features._replace(own_map=mask[:, patches].unflatten(1, (height, width)))

    def train(self, model: LocalizationModel, features: Features) -> TrainingOutput:
        assert features.own_map is not None
        semantic = model.head(features.patches)
        if model.calibration is None:
            logits = semantic.mean((2, 3))
        else:
            logits = model.calibration(semantic, features.own_map).logits
        return TrainingOutput(logits, self.terms(features.own_map))

    def terms(self, mask: Tensor) -> dict[str, Tensor]:
        """Return the loss terms of masks (B, H, W)."""
        if self.area == "measured":
            raise InputError(
                "method 'sat': `area: measured` is for scm-fast train; in your own loop give a number, as that "
                "of scm_fast.training.measure_object_share"
            )
        with torch.autocast(mask.device.type, enabled=False):
            smooth = F.conv2d(mask.unsqueeze(1), smoothing_kernel(mask), padding=1)
        return {
            "area": (distributed.mean_over_images(mask.mean(), len(mask)) - self.area).abs(),
            "binarisation": (smooth * (1 - smooth)).mean(),
        }

    def localize(self, model: LocalizationModel, features: Features) -> Localization:
        assert features.own_map is not None
        semantic = single(model.head(features.patches))
        logits = semantic.mean((2, 3))
        if self.fusion != "coupled":
            return Localization(logits, features.own_map, None, features.patches)
        assert features.attention is not None
        shared = (single(features.own_map) * single(features.attention)) ** (1 / 3)
        return Localization(logits, shared, semantic.clamp(min=0) ** (1 / 3), features.patches)

    def published(self, state: dict[str, Tensor]) -> Published | None:
        if "loc_token" not in state:
            return None
        # `weight` is the smoothing kernel.
        network = {name: state[name] for name in state if name not in (*NAMES, "weight")}
        token = {ours: state[theirs] for theirs, ours in NAMES.items() if theirs in state}
        return Published({}, backbone_and_head(network) | token)


def _smoothing_weights(dtype: torch.dtype) -> tuple[float, float, float]:
    """Corner, side and centre of the smoothing kernel, to the bits of a computation in `dtype`.

    Nearly a delta. Differences of the normal distribution at four points, as the authors' code.
    """
    end = 6 + 13 / 6
    points = [end * (2 * i / 3 - 1) for i in range(4)]
    cdf = [(1 + math.erf(x / math.sqrt(2))) / 2 for x in points]
    d = torch.tensor([b - a for a, b in itertools.pairwise(cdf)], dtype=dtype)
    kernel = torch.outer(d, d).sqrt()
    kernel /= kernel.sum()
    return float(kernel[0, 0]), float(kernel[0, 1]), float(kernel[1, 1])


SMOOTHING = {dtype: _smoothing_weights(dtype) for dtype in (torch.float32, torch.float64)}


def smoothing_kernel(like: Tensor) -> Tensor:
    """(1, 1, 3, 3), written where it is used: copying it to a GPU would wait for what is computed there."""
    corner, side, centre = SMOOTHING[like.dtype]
    kernel = like.new_full((1, 1, 3, 3), corner)
    kernel[:, :, 1] = side
    kernel[:, :, :, 1] = side
    kernel[:, :, 1, 1] = centre
    return kernel
