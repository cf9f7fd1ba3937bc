"""`Predictor`: a model's answers for a batch, with the activation maps of chosen classes.

A `Strategy` says which maps make the activation map: by default F0 * S0, as the method prescribes. The
calibration module is dropped at inference, but its blocks can still be run on an evaluation batch to study
what they make of the maps. A strategy is written `F0*S0`: F is the attention map and S the semantic map of
the class, the number says after how many blocks (0: as the network gives it). Either factor may be left out,
and several blocks, as in `F0,4*S4`, are averaged. A mean that takes in F0 uses it min-max normalised per
image, as the first block does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import Preprocessing
from ..errors import InputError
from ..models import Localization, LocalizationModel
from ..models.maps import Maps, get_map, look
from ..models.refinement import refine_maps
from ..threshold import Threshold

DEFAULT = "F0*S0"
MOST_TILES = 8  # in a row or column


@dataclass(frozen=True)
class Strategy:
    """Blocks whose maps are averaged; no block for a factor that is left out."""

    attention: tuple[int, ...] = (0,)
    semantic: tuple[int, ...] = (0,)

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

    @property
    def last_block(self) -> int:
        return max(self.attention + self.semantic)

    def check(self, model: LocalizationModel) -> None:
        """Raise an InputError if the model has no such maps."""
        blocks = model.calibration.num_blocks if model.calibration is not None else 0
        if self.last_block > blocks:
            raise InputError(
                f"strategy asks for block {self.last_block}, but the checkpoint has {blocks} calibration blocks"
                + ("" if blocks else " (it is a baseline, or was saved for inference)")
            )
        if not model.method.plain_factors and (self.semantic or self.last_block) and self != Strategy():
            raise InputError(
                f"strategy {self} needs semantic maps, and a model with method {model.config.method!r} has none "
                "that a calibration takes"
            )

    @torch.inference_mode()
    def maps(self, model: LocalizationModel, localization: Localization, classes: Tensor) -> Tensor:
        """Activation maps (B, k, H, W) of classes (B, k)."""
        if self == Strategy():
            return localization.activation_map(classes)
        self.check(model)
        attentions, semantics = [localization.attention], []
        if localization.semantic is not None:
            semantics = [localization.semantic]
            if self.last_block > 0:
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
    """Scale each image's map to [0, 1]; a constant map to zeros."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return (maps - low) / (high - low).clamp_min(torch.finfo(maps.dtype).tiny)


@dataclass
class Predictor:
    """A model with the device and precision it runs in.

    name: of the checkpoint that the model is from, for people.
    mirror: whether logits and maps are the mean of the image's and of its mirror image's: two passes.
    map: the name of another map than the model's own, see `scm_fast.models.maps`; instead of a strategy.
    refine: whether SCM's diffusion is applied to the maps, see `scm_fast.models.refinement`.
    tiles: (rows, columns) that every image is cut into, see `_look_at_tiles`.
    foreign_classes: whether the model's classes are others than the data's, as ImageNet's are for birds. Then no
        map belongs to a label: the map of an image is that of the class which the model finds in it.
    """

    model: LocalizationModel
    device: torch.device
    strategy: Strategy = Strategy()
    amp: torch.dtype | None = None
    name: str = ""
    mirror: bool = False
    map: str | None = None
    refine: bool = False
    foreign_classes: bool = False
    tiles: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        if min(self.tiles) < 1 or max(self.tiles) > MOST_TILES:
            raise InputError(
                f"tiles must be 1x1 to {MOST_TILES}x{MOST_TILES}, got {self.tiles[0]}x{self.tiles[1]}"
            )
        if self.map is None:
            return
        get_map(self.map)
        if self.strategy != Strategy():
            raise InputError(f"a map ({self.map}) and a strategy ({self.strategy}) exclude each other")

    @property
    def map_name(self) -> str:
        """Name the map, for people."""
        own = f"of method {self.model.config.method}" if self.strategy == Strategy() else str(self.strategy)
        tiles = "" if self.tiles == (1, 1) else f", {self.tiles[0]}x{self.tiles[1]} tiles"
        return (self.map or own) + (", refined" if self.refine else "") + tiles

    @property
    def is_own_map(self) -> bool:
        """True if it is the map by which the method was trained and its threshold chosen."""
        return (self.map, self.strategy, self.refine, self.tiles) == (None, Strategy(), False, (1, 1))

    @property
    def prescribed_threshold(self) -> Threshold | None:
        """The threshold by which the method cuts its own map; None for other maps, and where images choose."""
        return self.model.method.threshold if self.is_own_map else None

    @property
    def class_names(self) -> list[str]:
        """The names of the model's classes; their numbers if nobody named them."""
        config = self.model.config
        return list(config.class_names or map(str, range(config.num_classes)))

    @property
    def preprocessing(self) -> Preprocessing:
        """Squash images to what the model or its tiles take, and normalise them as its backbone was trained."""
        config = self.model.config
        (height, width), (rows, columns) = config.image_size, self.tiles
        return Preprocessing((height * rows, width * columns), None, config.mean, config.std)

    def __call__(self, images: Tensor, choose: Callable[[Tensor], Tensor]) -> tuple[Localization, Tensor]:
        """`choose` makes the classes (B, k) from the logits (B, C); gives their maps (B, k, H, W)."""
        localization, maps = self._look(images)
        if not self.mirror:
            return localization, maps(choose(localization.logits))
        mirrored, others = self._look(images.flip(-1))
        mean = _mean(localization, mirrored)
        classes = choose(mean.logits)
        return mean, (maps(classes) + others(classes).flip(-1)) / 2

    def _look(self, images: Tensor) -> tuple[Localization, Maps]:
        localization, maps = self._look_unrefined(images)
        if not self.refine:
            return localization, maps
        return localization, lambda classes: refine_maps(localization.tokens, maps(classes))

    def _look_unrefined(self, images: Tensor) -> tuple[Localization, Maps]:
        return self._look_once(images) if self.tiles == (1, 1) else self._look_at_tiles(images)

    def _look_at_tiles(self, images: Tensor) -> tuple[Localization, Maps]:
        """Look at the whole of images (B, 3, rows * height, columns * width), and at each of their tiles.

        The whole says what the image shows and roughly where, the tiles say where exactly: the map is the geometric
        mean of the two, each on the tiles' grid. A map of tiles alone would have an object in every empty tile.
        """
        size = list(self.model.config.image_size)
        whole, whole_maps = self._look_once(F.interpolate(images, size, mode="bilinear", antialias=True))
        tiles, tile_maps = self._look_once(split_tiles(images, self.tiles))

        def maps(classes: Tensor) -> Tensor:
            each = classes.repeat_interleave(self.tiles[0] * self.tiles[1], dim=0)
            fine = join_tiles(tile_maps(each).float(), self.tiles)
            coarse = F.interpolate(whole_maps(classes).float(), fine.shape[-2:], mode="bicubic")
            return (fine.clamp(min=0) * coarse.clamp(min=0)).sqrt()

        semantic = None if tiles.semantic is None else join_tiles(tiles.semantic, self.tiles)
        attention = join_tiles(tiles.attention.unsqueeze(1), self.tiles).squeeze(1)
        tokens = join_tiles(tiles.tokens, self.tiles)
        return Localization(whole.logits, attention, semantic, tokens), maps

    def _look_once(self, images: Tensor) -> tuple[Localization, Maps]:
        with torch.autocast(self.device.type, dtype=self.amp, enabled=self.amp is not None):
            if self.map is not None:
                return look(get_map(self.map), self.model, images)
            with torch.inference_mode():
                localization = self.model(images)
        return localization, lambda classes: self.strategy.maps(self.model, localization, classes)


def split_tiles(images: Tensor, tiles: tuple[int, int]) -> Tensor:
    """Cut images (B, C, rows * h, columns * w) into (B * rows * columns, C, h, w), row by row."""
    (rows, columns), (height, width) = tiles, images.shape[-2:]
    cut = images.unflatten(3, (columns, width // columns)).unflatten(2, (rows, height // rows))
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)


def join_tiles(parts: Tensor, tiles: tuple[int, int]) -> Tensor:
    """Undo `split_tiles`."""
    joined = parts.unflatten(0, (-1, *tiles)).permute(0, 3, 1, 4, 2, 5)
    return joined.flatten(4, 5).flatten(2, 3)


def _mean(own: Localization, mirrored: Localization) -> Localization:
    """Average the outputs of an image and of its mirror image, which are turned back."""
    semantic = None
    if own.semantic is not None and mirrored.semantic is not None:
        semantic = (own.semantic + mirrored.semantic.flip(-1)) / 2
    return Localization(
        (own.logits + mirrored.logits) / 2,
        (own.attention + mirrored.attention.flip(-1)) / 2,
        semantic,
        (own.tokens + mirrored.tokens.flip(-1)) / 2,
    )
