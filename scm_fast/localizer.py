"""`Localizer`: classes, boxes and maps of anybody's images, in one call.

localizer = Localizer.from_checkpoint("runs/birds/last")
for prediction in localizer.predict("photos"):
    print(prediction.name, prediction.classes[0].name, prediction.box)
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from .data.images import image_size, load_image, to_rgb
from .data.listing import list_images
from .devices import amp_dtype, resolve_device
from .errors import InputError
from .evaluation.boxes import ScoredBox, locate
from .evaluation.emptiness import Emptiness, confidence
from .evaluation.predictor import Predictor
from .models import Localization, LocalizationModel, load_model
from .threshold import Threshold, choose_unboxed, no_separation, threshold_to_use, token_separation

logger = logging.getLogger("scm_fast")
MOST_TO_CHOOSE_BY = 100  # images; more of them do not choose better

ImageLike: TypeAlias = "str | os.PathLike[str] | Image.Image | NDArray | Tensor"


@dataclass(frozen=True)
class ClassScore:
    index: int
    name: str
    score: float  # softmax probability


@dataclass(frozen=True)
class Prediction:
    """The model's answer for one image."""

    name: str  # the path as it was found, or `image 3` for the fourth of pictures without one
    size: tuple[int, int]  # (width, height) of the original
    classes: list[ClassScore]  # best first
    boxes: list[ScoredBox]  # the largest, then the others that were asked for by their scores; none if empty
    map: NDArray[np.float32]  # (224, 224) in [0, 1], activation of the best class over the whole image
    empty: str = ""  # why there is no box, see `evaluation.emptiness`

    @property
    def box(self) -> tuple[float, float, float, float] | None:
        """Return x0, y0, x1, y1 in original pixels, of the first of `boxes`; None without one."""
        return self.boxes[0].box if self.boxes else None


@dataclass(frozen=True)
class Failure:
    """An image that could not be read."""

    name: str
    error: str


class _Loaded(NamedTuple):
    name: str
    size: tuple[int, int]
    pixels: Tensor  # uint8 (3, H, W) at the network's size


class Localizer:
    """A model for inference with its preprocessing and its box threshold.

    Args:
        model: from `create_model` or `load_model`; it is copied without its calibration module.
        device: where to run; CUDA if there is one.
        batch_size: images that go through the network at once.
        threshold: of the box: a number in [0, 1) of the map's range, or a rule of each image's own such as
            "between:0.3", for maps that are resized as the checkpoint's threshold wants them. By default the
            checkpoint's; without one "between:0.3", which `choose_threshold` may improve.
        top_k: how many classes a prediction lists.
        mirror: average scores and maps with those of the mirror image, in two passes.
        max_boxes: most boxes of an image. From 2 on, other parts of the map that are large enough have theirs too.
        map: another map than the model's own, such as "rollout"; see docs/methods.md. The checkpoint's threshold
            is not for it.
        refine: apply SCM's diffusion to the maps.
        reject: share, in [0, 1), of the validation images that would be rejected: an image less certain than those
            gets no box. 0 rejects none. Images of the model's empty classes never get one.
        tiles: (rows, columns) to cut every image into, so that the network sees small objects larger.
        amp: precision of the network's products: none, bf16, fp16, or auto for bf16 on a GPU that has it and none
            on the CPU. Scores and maps are in float32 in any case.
    """

    def __init__(  # noqa: PLR0913, keywords of one call
        self,
        model: LocalizationModel,
        device: str | torch.device | None = None,
        batch_size: int = 32,
        threshold: float | str | Threshold | None = None,
        top_k: int = 5,
        mirror: bool = False,
        max_boxes: int = 1,
        map: str | None = None,
        refine: bool = False,
        reject: float = 0.0,
        tiles: tuple[int, int] = (1, 1),
        amp: str = "auto",
    ) -> None:
        if not isinstance(model, LocalizationModel):
            raise InputError(
                f"model must be a LocalizationModel, got {type(model).__name__}; a path goes to "
                "Localizer.from_checkpoint"
            )
        config = model.config
        for name, value in (("batch_size", batch_size), ("top_k", top_k), ("max_boxes", max_boxes)):
            if value < 1:
                raise InputError(f"{name} must be positive, got {value}")
        self.device = resolve_device(device)
        self.model = model.for_inference().to(self.device)
        self.predictor = Predictor(
            self.model,
            self.device,
            amp=amp_dtype(amp, self.device),
            mirror=mirror,
            map=map,
            refine=refine,
            tiles=tiles,
        )
        self.batch_size = batch_size
        chosen = config.threshold if self.predictor.is_own_map else None
        self.choice = threshold_to_use(chosen, threshold, self.predictor.prescribed_threshold)
        self.top_k = min(top_k, config.num_classes)
        self.max_boxes = max_boxes
        self.class_names = self.predictor.class_names
        self.emptiness = Emptiness(config, self.class_names, reject)
        self.preprocessing = self.predictor.preprocessing

    @classmethod
    def from_checkpoint(  # noqa: PLR0913
        cls,
        path: str | os.PathLike[str],
        device: str | torch.device | None = None,
        batch_size: int = 32,
        threshold: float | str | Threshold | None = None,
        top_k: int = 5,
        mirror: bool = False,
        max_boxes: int = 1,
        map: str | None = None,
        refine: bool = False,
        reject: float = 0.0,
        tiles: tuple[int, int] = (1, 1),
        amp: str = "auto",
    ) -> Localizer:
        """Load a folder that `save_model` wrote, or a published file."""
        options = (device, batch_size, threshold, top_k, mirror, max_boxes, map, refine, reject, tiles, amp)
        return cls(load_model(path), *options)

    @property
    def threshold(self) -> Threshold:
        """The threshold that cuts maps; `choice` also says why."""
        return self.choice.threshold

    def predict(self, images: ImageLike | Iterable[ImageLike]) -> list[Prediction | Failure]:
        """One entry per image, in their order; a `Failure`, which is logged, for one that cannot be read.

        images: paths, folders (all images below, sorted), PIL images, arrays, tensors, or several. An array is
            (H, W, 3), a tensor (3, H, W), either grey (H, W), or a batch of them with one axis more; uint8, or
            floating-point in [0, 1]. Others are refused with an InputError.
        """
        results = list(self.stream(images))
        for result in results:
            if isinstance(result, Failure):
                logger.warning("%s", result.error)
        return results

    def choose_threshold(self, images: ImageLike | Iterable[ImageLike]) -> str:
        """Refine the threshold by images alone, without boxes; gives how, in words.

        100 images are enough: of more, those are taken at equal distances. See `threshold`.
        """
        found = list(find_images(images))
        stride = max(1, -(-len(found) // MOST_TO_CHOOSE_BY))
        parts = [no_separation(0)]
        for loaded in self._batches(found[::stride]):
            if readable := [item for item in loaded if isinstance(item, _Loaded)]:
                localization, maps = self._predict(readable)
                parts.append(token_separation(maps[:, 0].cpu().numpy(), localization.tokens))
        self.choice = choose_unboxed(
            np.concatenate(parts), self.threshold.interpolation, self.predictor.prescribed_threshold
        )
        return self.choice.reason

    def stream(self, images: ImageLike | Iterable[ImageLike]) -> Iterator[Prediction | Failure]:
        """Predict one result at a time and with the failures: for more images than fit in memory."""
        for loaded in self._batches(find_images(images)):
            yield from self._localize(loaded)

    def _batches(self, images: Iterable[ImageLike]) -> Iterator[list[_Loaded | Failure]]:
        entries = enumerate(images)
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as readers:

            def read_ahead() -> list:
                return [
                    readers.submit(self._load, *entry) for entry in itertools.islice(entries, self.batch_size)
                ]

            waiting = read_ahead()
            while waiting:
                loaded = [future.result() for future in waiting]
                waiting = read_ahead()  # decoded while the network works
                yield loaded

    def _load(self, index: int, image: ImageLike) -> _Loaded | Failure:
        if isinstance(image, (str, os.PathLike)):
            name = os.fspath(image)
            height, width = self.preprocessing.size
            try:
                picture = load_image(image, target_size=(width, height))
                return _Loaded(name, image_size(image), self.preprocessing.prepare(picture))
            except InputError as error:
                return Failure(name, str(error))
        name = f"image {index}"
        if not isinstance(image, Image.Image):
            try:
                picture = from_array(image)
            except InputError as error:
                raise InputError(f"{name}: {error}") from None
            return _Loaded(name, picture.size, self.preprocessing.prepare(picture))
        try:
            picture = to_rgb(image)
            return _Loaded(name, picture.size, self.preprocessing.prepare(picture))
        except (InputError, OSError) as error:  # Pillow reads the file when its pixels are asked for
            return Failure(name, f"{name}: {error}")

    def _localize(self, loaded: list[_Loaded | Failure]) -> Iterator[Prediction | Failure]:
        readable = [item for item in loaded if isinstance(item, _Loaded)]
        predictions: Iterator[Prediction] = iter(())
        if readable:
            localization, maps = self._predict(readable)
            scores, classes = localization.top(self.top_k)
            activations = maps[:, 0].cpu().numpy()
            certain = confidence(localization.logits).tolist()
            predictions = map(
                self._prediction, readable, scores.tolist(), classes.tolist(), certain, activations
            )
        for item in loaded:
            yield next(predictions) if isinstance(item, _Loaded) else item

    def _predict(self, readable: list[_Loaded]) -> tuple[Localization, Tensor]:
        """Predict with the best classes' maps (B, 1, H, W)."""
        pixels = torch.stack([item.pixels for item in readable]).to(self.device)
        return self.predictor(
            self.preprocessing.normalize(pixels), lambda logits: logits.argmax(1, keepdim=True)
        )

    def _prediction(
        self,
        item: _Loaded,
        scores: list[float],
        classes: list[int],
        confidence: float,
        activation: NDArray[np.float32],
    ) -> Prediction:
        located = locate(activation, self.threshold, item.size, self.max_boxes)
        empty = self.emptiness.reason(classes[0], confidence)
        if located.is_blank and not empty:
            logger.warning("%s: the map says nothing, the box is the whole image", item.name)
        return Prediction(
            item.name,
            item.size,
            [
                ClassScore(index, self.class_names[index], score)
                for index, score in zip(classes, scores, strict=True)
            ],
            [] if empty else located.boxes,
            located.scores.astype(np.float32),
            empty,
        )


def find_images(images: ImageLike | Iterable[ImageLike]) -> Iterator[ImageLike]:
    """The images one by one, with every folder replaced by the image files below it."""
    if isinstance(images, (str, os.PathLike)) and not os.path.exists(images):
        raise InputError(f"{os.fspath(images)}: no such image file or folder")
    one_array = isinstance(images, (np.ndarray, Tensor)) and images.ndim < 4  # four axes are a batch
    if one_array or isinstance(images, (str, os.PathLike, Image.Image)):
        images = [images]  # type: ignore[list-item]
    if not isinstance(images, Iterable):
        raise InputError(f"expected images, paths or a list of them, got {type(images).__name__}")
    for image in images:
        if isinstance(image, (str, os.PathLike)):
            yield from image_files(image)
        else:
            yield image


def image_files(path: str | os.PathLike[str]) -> list[Path]:
    """The image files below a folder, sorted; anything else is a file by itself, readable or not.

    What is left out of a folder is logged.
    """
    path = Path(path)
    if not path.is_dir():
        return [path]
    listing = list_images(path)
    for note in listing.notes():
        logger.warning("%s: %s", path, note)
    if not listing.paths:
        raise InputError(f"{path}: no image files in this folder")
    return [path / name for name in listing.paths]


def from_array(array: NDArray | Tensor) -> Image.Image:
    """An RGB image from an array (H, W, C) or a tensor (C, H, W) of 1, 3 or 4 channels, or either (H, W); uint8, or
    floating-point in [0, 1]."""
    if isinstance(array, Tensor):
        tensor = array.detach().cpu()
        expected, pixels = "(3, H, W)", (tensor.movedim(0, -1) if tensor.ndim == 3 else tensor).numpy()
    elif isinstance(array, np.ndarray):
        expected, pixels = "(H, W, 3)", array
    else:
        raise InputError(
            f"expected a path, a PIL image, a numpy array or a tensor, got {type(array).__name__}"
        )
    kind = f"{'a tensor' if isinstance(array, Tensor) else 'an array'} must be {expected}"
    given = f"{array.dtype} {tuple(array.shape)}".removeprefix("torch.")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    grey_or_colour = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))
    if not grey_or_colour or pixels.size == 0:
        raise InputError(f"{kind}, got {given}")
    if pixels.dtype.kind == "f":
        low, high = float(pixels.min()), float(pixels.max())
        if not 0 <= low <= high <= 1:  # NaN too
            raise InputError(
                f"{kind}, uint8 or floating-point in [0, 1]; got {given} from {low:.3g} to {high:.3g} "
                "(neither normalised nor scaled to 255)"
            )
        pixels = np.rint(pixels * 255).astype(np.uint8)
    elif pixels.dtype != np.uint8:
        raise InputError(f"{kind}, uint8 or floating-point in [0, 1]; got {given}")
    return to_rgb(Image.fromarray(np.ascontiguousarray(pixels)))
