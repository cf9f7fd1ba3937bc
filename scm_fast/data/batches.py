"""One image as training and evaluation want it, and batches of them: the part of loading that workers do."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import InputError
from .cache import DecodedCache
from .dataset import LocalizationDataset
from .order import Key
from .preprocessing import Preprocessing
from .records import Problem


@dataclass
class Batch:
    """images (B, 3, H, W) normalised float; labels (B,) int64; indices (B,) int64 into the data set.

    ends_step: this is the last micro-batch of an optimiser step (always so in evaluation).
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    ends_step: bool = True
    problems: list[Problem] = field(default_factory=list)

    def pin_memory(self) -> Batch:  # DataLoader calls it
        return Batch(
            self.images.pin_memory(),
            self.labels.pin_memory(),
            self.indices.pin_memory(),
            self.ends_step,
            self.problems,
        )


class PreparedImages(Dataset):
    """(epoch, index) -> (uint8 image, label, index, problems). Runs in the workers.

    Bad images do not raise here: an exception that crosses processes loses its plain message.
    """

    def __init__(
        self,
        dataset: LocalizationDataset,
        preprocessing: Preprocessing,
        seed: int,
        cache: DecodedCache | None,
        replace_bad: bool,
    ) -> None:
        self.dataset, self.preprocessing, self.seed = dataset, preprocessing, seed
        self.cache, self.replace_bad = cache, replace_bad

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Key) -> tuple[Tensor | None, int, int, list[Problem]]:
        epoch, index = key
        problems: list[Problem] = []
        for _ in range(len(self.dataset) if self.replace_bad else 1):
            try:
                image = self._prepared(index)
            except InputError as error:
                record = self.dataset.records[index]
                problems.append(
                    Problem(str(record.path), str(error).removeprefix(f"{record.path}: "), record.id)
                )
                index = (index + 1) % len(self.dataset) if self.replace_bad else index
                continue
            return self._augmented(image, epoch, index), int(self.dataset.labels[index]), index, problems
        return None, int(self.dataset.labels[index]), index, problems

    def _prepared(self, index: int) -> Tensor:
        height, width = self.preprocessing.size
        if self.cache is None or self.dataset.in_memory:
            return self.preprocessing.prepare(self.dataset.load_tensor(index, (width, height)))
        path = self.dataset.records[index].path
        assert path is not None
        image = self.cache.get(index, path)
        if image is None:
            image = self.preprocessing.prepare(self.dataset.load_tensor(index, (width, height)))
            self.cache.put(index, path, image)
        return image

    def _augmented(self, image: Tensor, epoch: int, index: int) -> Tensor:
        if self.preprocessing.augment is None:
            return image
        generator = torch.default_generator  # the one that torchvision's transforms draw from
        state = generator.get_state()
        generator.manual_seed(int(np.random.SeedSequence([self.seed, epoch, index]).generate_state(1)[0]))
        try:
            return self.preprocessing.augment(image)
        finally:
            generator.set_state(state)


def collate(items: list[tuple[Tensor | None, int, int, list[Problem]]]) -> Batch:
    good = [item for item in items if item[0] is not None]
    images = [image for image, *_ in items if image is not None]
    return Batch(
        torch.stack(images) if images else torch.empty(0),
        torch.tensor([label for _, label, _, _ in good], dtype=torch.int64),
        torch.tensor([index for _, _, index, _ in good], dtype=torch.int64),
        problems=[problem for item in items for problem in item[3]],
    )
