"""Maps: a map is a function of what the attention layers saw in one forward pass."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from ...errors import InputError
from ...precision import single
from ..architectures import architecture_of
from ..cls_attention import AttentionLayer, measure_layers
from ..localization_model import Localization, LocalizationModel

# The maps (B, k, H, W) of classes (B, k).
Maps: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Pass:
    """One forward pass of B images.

    logits: (B, C); with a graph if the map needs gradients.
    layers: what each attention layer had, first to last; all with the same N tokens.
    patches: which of the N are patches.
    grid: (H, W) of the patches.
    """

    logits: Tensor
    layers: list[AttentionLayer]
    patches: slice
    grid: tuple[int, int]

    def on_grid(self, values: Tensor) -> Tensor:
        """(..., N) -> (..., H, W), without the tokens that are no patches."""
        return values[..., self.patches].unflatten(-1, self.grid)


@dataclass(frozen=True)
class Map:
    """A map without parameters.

    by_class: whether it depends on the class, which takes a backward pass for each.
    compute: gives maps (B, H, W); where `by_class`, its second argument is the logits (B,) to explain.
    """

    name: str
    summary: str
    by_class: bool
    compute: Callable[..., Tensor]


_maps: dict[str, Map] = {}


def register(name: str, summary: str, by_class: bool = False) -> Callable[[Callable[..., Tensor]], Map]:
    """Decorator of the function that computes it: `compute(pass)`, or `compute(pass, scores)` if `by_class`."""

    def enter(compute: Callable[..., Tensor]) -> Map:
        _maps[name] = Map(name, summary, by_class, compute)
        return _maps[name]

    return enter


def map_names() -> list[str]:
    return sorted(_maps)


def get_map(name: str) -> Map:
    if name not in _maps:
        near = difflib.get_close_matches(str(name), _maps, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"map must be one of {', '.join(map_names())}, got {name!r}{hint}")
    return _maps[name]


def look(map: Map, model: LocalizationModel, images: Tensor) -> tuple[Localization, Maps]:
    """Return the output of `model`, in evaluation mode, for images (B, 3, height, width), and maps of any classes.

    The memory is that of a forward and, for maps by class, a backward pass: attention matrices are formed for one
    head of one layer at a time.
    """
    if not architecture_of(model.backbone).same_tokens:
        raise InputError(
            f"map {map.name!r} needs layers that all have the same tokens, and those of {model.config.backbone!r} "
            "have fewer and fewer; leave --map out for the model's own map"
        )
    with (
        torch.inference_mode(not map.by_class),
        torch.set_grad_enabled(map.by_class),
        measure_layers(lambda layer: layer) as layers,
    ):
        if map.by_class:
            # Parameters may be without gradients; a graph begins at the images in any case.
            images = images.detach().clone().requires_grad_()
        localization = model(images)
    grid = localization.tokens.shape[-2], localization.tokens.shape[-1]
    prefix = getattr(model.backbone, "num_prefix_tokens", 1)
    found = Pass(localization.logits, layers, slice(prefix, prefix + grid[0] * grid[1]), grid)

    def maps(classes: Tensor) -> Tensor:
        if not map.by_class:
            one = single(map.compute(found))
            return one.unsqueeze(1).expand(-1, classes.shape[1], -1, -1)
        with torch.enable_grad():
            scores = found.logits.gather(1, classes)
            found_maps = [single(map.compute(found, score).detach()) for score in scores.unbind(1)]
            return torch.stack(found_maps, dim=1)

    return Localization(*(None if part is None else part.detach() for part in localization)), maps  # type: ignore[arg-type]
