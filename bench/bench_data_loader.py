"""Compare this package's loader with the plain PIL and torchvision pipeline, from JPEG file to training batch.

    SCM_FAST_DATA=... pytest bench/bench_data_loader.py --benchmark-only

Both read files, decode, resize to 256 x 256, crop 224, flip, normalise and stack batches of 32, in one
process on one thread. Processor seconds of a pass over 128 images are counted, so that other work on the
machine disturbs little. Two kinds of file:

- original: 500 pixels on the long side and about 90 KB, as CUB is distributed. They are made from the
  pictures of SCM_FAST_DATA by enlarging them, with grain so that entropy decoding has as much to do.
- scaled: 256 pixels on the short side and about 14 KB, as those pictures are.

Without SCM_FAST_DATA the pictures are clouds of noise.
"""

import os
import statistics
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from measure import Task
from PIL import Image
from torch.utils.data import DataLoader, default_collate
from torchvision import transforms
from torchvision.datasets import ImageFolder

from scm_fast.benchmarks.table import CPU_TIME, Case
from scm_fast.data import DecodedCache, build_train_loader, open_dataset, published_preprocessing

IMAGES, BATCH = 128, 32
LEAST_SPEEDUP = 1.5


def pictures():
    """IMAGES RGB pictures with a short side of 256."""
    folder = os.environ.get("SCM_FAST_DATA")
    if folder:
        files = sorted((Path(folder) / "CUB_200_2011" / "images").glob("*/*.jpg"))
        for path in files[:: len(files) // IMAGES][:IMAGES]:
            yield Image.open(path).convert("RGB")
        return
    random = np.random.default_rng(0)
    for _ in range(IMAGES):
        clouds = random.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        yield Image.fromarray(clouds).resize((341, 256), Image.BICUBIC)


def enlarged(image: Image.Image, random: np.random.Generator) -> Image.Image:
    scale = 500 / max(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.BICUBIC)
    pixels = np.asarray(image).astype(np.int16) + random.integers(
        -6, 7, (*image.size[::-1], 1), dtype=np.int16
    )
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module", params=["original", "scaled"])
def folder(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures") / request.param
    random = np.random.default_rng(0)
    for number, image in enumerate(pictures()):
        path = root / "train" / f"class_{number % 4}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if request.param == "original":
            enlarged(image, random).save(path, quality=95)
        else:
            image.save(path, quality=70)
    return root


def plain_batches(root: Path):
    """The pipeline of a training script without this package."""
    pipeline = transforms.Compose(
        [
            transforms.Resize((256, 256)),
            transforms.RandomCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    return DataLoader(ImageFolder(root / "train", pipeline), BATCH, shuffle=True, collate_fn=default_collate)


def check_same_pixels(root: Path) -> None:
    """Check that both pipelines give the same images up to one grey level, without the random steps."""
    dataset = open_dataset(root, "trainval")
    preprocessing = published_preprocessing(training=False)
    pipeline = transforms.Compose([transforms.Resize((224, 224)), transforms.PILToTensor()])
    for index in range(0, len(dataset), 8):
        ours = preprocessing.prepare(dataset.load_tensor(index))  # whole: scaled decoding filters differently
        plain = pipeline(Image.open(dataset.records[index].path).convert("RGB"))
        assert (ours.int() - plain.int()).abs().max() <= 1


def test_loader_speed(compare, limits, one_thread, folder, tmp_path):
    check_same_pixels(folder)
    dataset = open_dataset(folder, "trainval")
    preprocessing = published_preprocessing(training=True)
    options = {"global_batch": BATCH, "workers": 0}
    cache = DecodedCache(tmp_path, dataset, preprocessing.size, max_gigabytes=1)
    loaders = {
        "reference": plain_batches(folder),
        "scm_fast": build_train_loader(dataset, preprocessing, **options),
        "scm_fast, cached": build_train_loader(dataset, preprocessing, **options, cache=cache),
    }

    def count_batches(loader: Iterable) -> int:
        return sum(1 for _ in loader)

    for loader in loaders.values():  # fills the cache as well
        assert count_batches(loader) == IMAGES // BATCH
    kilobytes = statistics.mean(path.stat().st_size for path in folder.glob("*/*/*.jpg")) / 1e3
    variant = f"{IMAGES} {folder.name} JPEGs of {kilobytes:.0f} KB"
    measured = compare(
        Case("data_loader", "forward", BATCH, variant=variant),
        {name: Task(lambda _, loader=loader: count_batches(loader)) for name, loader in loaders.items()},
        metric=CPU_TIME,
        memory=False,
        min_rounds=7,
    )
    assert not limits or measured.ratio("reference", "scm_fast") >= LEAST_SPEEDUP
