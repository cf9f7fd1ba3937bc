"""A model that sees colours: what it finds in a picture of coloured squares is known."""

from collections.abc import Sequence

import torch

from scm_fast import create_model
from scm_fast.models import LocalizationModel

SMALL = {"depth": 1, "embed_dim": 48, "num_heads": 3}


def colour_model(class_names: Sequence[str]) -> LocalizationModel:
    """Return a model whose three classes are red, green and blue.

    Its head reads three channels that the patch embedding makes of the colours. With zeroed blocks a token is its
    patch's mean colour, so a red square is class 0, and its box is known.
    """
    model = create_model("deit_tiny_patch16_224", 3, class_names=class_names, backbone_options=SMALL)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.backbone.norm.weight.fill_(1)
        for channel in range(3):
            model.backbone.patch_embed.proj.weight[channel, channel] = 1 / 256
            model.head.weight[channel, channel, 1, 1] = 1
    return model
