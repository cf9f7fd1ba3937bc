"""Turn a decoded image into the network's input, in three stages.

1. `prepare`: resize to a fixed size. No randomness, so the result can be cached.
2. `augment`: torchvision v2 transforms on uint8 tensors, random.
3. `normalize`: to float, minus mean, over std; on the device, for whole batches, so that workers, shared
   memory and the bus carry one byte per value instead of four.

The resize works on uint8 tensors, where torch has vectorised kernels: several times faster than PIL's, with
the same antialiased result (up to one grey level).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from ..errors import InputError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocessing:
    """The way images become inputs. `augment` maps uint8 (3, H, W) to uint8 (3, H', W')."""

    size: tuple[int, int]  # (height, width) that `prepare` resizes to
    augment: Callable[[Tensor], Tensor] | None = None
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def prepare(self, image: Image.Image | Tensor) -> Tensor:
        """uint8 (3, *size) of an RGB image (a tensor: uint8 (3, H, W)), by antialiased bilinear filtering."""
        pixels = image if isinstance(image, Tensor) else functional.pil_to_tensor(image)
        if pixels.shape[-2:] == self.size:
            return pixels
        return functional.resize(pixels, list(self.size), antialias=True)

    def normalize(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """(B, 3, H, W) of `dtype`, on the device of `images` (uint8)."""
        mean, scale = _mean_and_scale(tuple(self.mean), tuple(self.std), dtype, images.device)
        if images.device.type != "cpu":
            return (images.to(dtype) - mean) * scale
        # Image by image, so that each stays in the cache of the core for its three passes.
        normalized = torch.empty(images.shape, dtype=dtype)
        for target, image in zip(normalized, images, strict=True):
            target.copy_(image).sub_(mean).mul_(scale)
        return normalized


@functools.cache
def _mean_and_scale(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation (3, 1, 1) of grey levels; kept, as a copy to a GPU would wait for it."""
    with torch.inference_mode(False):
        return (
            torch.tensor(mean, dtype=dtype, device=device).view(3, 1, 1) * 255,
            1 / (torch.tensor(std, dtype=dtype, device=device).view(3, 1, 1) * 255),
        )


def published_preprocessing(
    *,
    training: bool,
    image_size: int = 224,
    resize: int | None = None,
    color_jitter: float = 0.0,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
) -> Preprocessing:
    """Preprocess as in the paper. Training: squashed to `resize`, random crop and flip. Test: squashed.

    resize: defaults to image_size * 256 / 224, so 256 for 224.
    color_jitter: in training, how far from 1 the factors of brightness, contrast and saturation may be; the
        paper has 0.
    """
    if not training:
        return Preprocessing((image_size, image_size), None, mean, std)
    if resize is None:
        resize = round(image_size * 256 / 224)
    if resize < image_size:
        raise InputError(f"resize={resize}: must be at least the crop, image_size={image_size}")
    augment: list[nn.Module] = [v2.RandomCrop(image_size), v2.RandomHorizontalFlip()]
    if color_jitter:
        augment.append(v2.ColorJitter(color_jitter, color_jitter, color_jitter))
    return Preprocessing((resize, resize), v2.Compose(augment), mean, std)
