"""Which maps make the activation map: by default F0 * S0, as the method prescribes.

The calibration module is dropped at inference, but its blocks can still be run on an evaluation batch to
study what they make of the maps. A strategy is written `F0*S0`: F is the attention map and S the semantic map
of the class, the number says after how many blocks (0: as the network gives it). Either factor may be left
out, and several blocks, as in `F0,4*S4`, are averaged. A mean that takes in F0 uses it min-max normalised per
image, as the first block does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from ..models import Localization, LocalizationModel

DEFAULT = "F0*S0"


@dataclass(frozen=True)
class Strategy:
    """Blocks whose maps are averaged; no block for a factor that is left out."""

    attention: tuple[int, ...]
    semantic: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Strategy:
        blocks: dict[str, tuple[int, ...]] = {}
        for factor in text.split("*"):
            match = re.fullmatch(r"([FS])(\d+(?:,\d+)*)", factor.strip())
            if not match or match[1] in blocks:
                raise InputError(f"strategy {text!r}: expected such as F0*S0, F4*S4, S4 or F0,4*S0")
            blocks[match[1]] = tuple(sorted({int(number) for number in match[2].split(",")}))
        return cls(blocks.get("F", ()), blocks.get("S", ()))

    def __str__(self) -> str:
        factors = (("F", self.attention), ("S", self.semantic))
        return "*".join(name + ",".join(map(str, blocks)) for name, blocks in factors if blocks)

    def check(self, model: LocalizationModel) -> None:
        """Raise an InputError if the model has no such maps."""
        last = max(self.attention + self.semantic)
        blocks = model.calibration.num_blocks if model.calibration is not None else 0
        if last > blocks:
            raise InputError(
                f"strategy asks for block {last}, but the checkpoint has {blocks} calibration blocks"
                + ("" if blocks else " (it is a baseline, or was saved for inference)")
            )

    @torch.no_grad()
    def maps(self, model: LocalizationModel, localization: Localization, classes: Tensor) -> Tensor:
        """Activation maps (B, k, H, W) of classes (B, k)."""
        if self == Strategy.parse(DEFAULT):
            return localization.activation_map(classes)
        if localization.semantic is None:
            raise InputError("strategy needs semantic maps, and a model with method 'cls' has none")
        attentions, semantics = [localization.attention], [localization.semantic]
        if max(self.attention + self.semantic) > 0:
            self.check(model)
            assert model.calibration is not None
            trace = model.calibration.trace(localization.semantic, localization.attention)
            attentions += trace.attention
            semantics += trace.semantic
        if len(self.attention) > 1:
            attentions[0] = _min_max(attentions[0])
        index = classes[:, :, None, None].expand(-1, -1, *localization.attention.shape[1:])
        maps = torch.ones(index.shape, device=index.device)
        if self.attention:
            maps = maps * torch.stack([attentions[b] for b in self.attention]).mean(0).unsqueeze(1)
        if self.semantic:
            maps = maps * torch.stack([semantics[b].gather(1, index) for b in self.semantic]).mean(0)
        return maps


def _min_max(maps: Tensor) -> Tensor:
    """Per image to [0, 1]; a constant map to zeros."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return (maps - low) / (high - low).clamp_min(torch.finfo(maps.dtype).tiny)
