"""The built-in data set: the same bytes everywhere, and what makes it a localisation problem."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from scm_fast.data import open_dataset
from scm_fast.data.layouts.synthetic import (
    BADGE_COLOURS,
    CLASS_NAMES,
    COUNTS,
    SIZE,
    SPLITS,
    RandomStream,
    draw_image,
    draw_split,
)
from scm_fast.errors import InputError

# Of the first 24 images of a split, and of their labels and boxes.
CHECKSUMS = {
    "train": "64727524bef25a67 7a40f68523b8a516",
    "val": "ae53a4fe64f26ded 43c43b80350b3206",
    "test": "58a19b6307c638dc 336081e1de0fe8d6",
}


@pytest.fixture(scope="module")
def sample():
    return draw_split("test", 360)


def annotations(split):
    return json.dumps([(record.id, record.label, record.boxes) for record in split.records])


@pytest.mark.parametrize("name", SPLITS)
def test_the_same_bytes_on_every_machine(name):
    split = draw_split(name, 24)
    found = [
        hashlib.sha256(data).hexdigest()[:16]
        for data in (split.pixels.tobytes(), annotations(split).encode())
    ]
    assert " ".join(found) == CHECKSUMS[name]


def test_the_same_bytes_in_another_process():
    code = (
        "import hashlib; from scm_fast.data.layouts.synthetic import draw_split;"
        "print(hashlib.sha256(draw_split('val', 24).pixels.tobytes()).hexdigest()[:16])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == CHECKSUMS["val"].split()[0]


def test_random_stream_is_splitmix64():
    """Against SplitMix64 in Python integers."""

    def mix(x):
        mask = 2**64 - 1
        x = (x + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    state = mix(mix(0 ^ 3) ^ 5)
    expected = [10 + ((mix((state + i) % 2**64) >> 32) * 90 >> 32) for i in range(6)]
    assert RandomStream(3, 5).integers(10, 100, 2, 3).ravel().tolist() == expected
    stream = RandomStream(1)
    values = [stream.integer(-3, 4) for _ in range(1000)]
    assert set(values) == set(range(-3, 4))


def test_splits_and_seeds_differ():
    images = [draw_split(name, 5).pixels for name in SPLITS] + [draw_split("train", 5, seed=7).pixels]
    flat = {image.tobytes() for group in images for image in group}
    assert len(flat) == 20


def test_opened_by_name():
    dataset = open_dataset("synthetic", "val")
    assert (len(dataset), dataset.num_classes, dataset.layout) == (
        COUNTS["val"],
        len(CLASS_NAMES),
        "synthetic",
    )
    assert dataset.in_memory
    assert dataset.load(3).size == dataset.size(3) == (SIZE, SIZE)
    assert np.array_equal(dataset.load_tensor(3).permute(1, 2, 0).numpy(), np.asarray(dataset.load(3)))
    assert dataset.records[3].path is None
    assert np.bincount(dataset.labels).min() >= COUNTS["val"] // len(CLASS_NAMES)
    with pytest.raises(InputError, match="no split 'trainval'"):
        open_dataset("synthetic", "trainval")


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    (tmp_path / "synthetic").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no known layout"):
        open_dataset("synthetic", "val")


def badge_pixels(image, label):
    """Mask of the two badge colours; everything else is muted."""
    disc, _, ring = CLASS_NAMES[label].split()
    near = [np.abs(image.astype(int) - BADGE_COLOURS[name]).max(-1) <= 26 for name in (disc, ring)]
    return near[0] | near[1]


def test_the_class_is_in_a_small_part(sample):
    split, images = sample, sample.pixels
    for record, image in zip(split.records, images, strict=True):
        x0, y0, x1, y1 = map(int, record.boxes[0])
        badge = badge_pixels(image, record.label)
        inside = badge[y0:y1, x0:x1].sum()
        assert inside >= 80  # it is there, whole
        assert inside / badge.sum() > 0.95  # and nowhere else
        rows, columns = np.nonzero(badge[y0:y1, x0:x1])
        part = (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        assert part / ((x1 - x0) * (y1 - y0)) < 0.5  # a box around it is no hit


def test_only_the_badge_tells_classes_of_one_tint_apart():
    for index in range(20):
        image, box = draw_image(RandomStream(1, index), 0)
        other, other_box = draw_image(RandomStream(1, index), 1)
        assert box == other_box
        changed = (image != other).any(-1)
        rows, columns = np.nonzero(changed)
        assert changed.any()
        assert max(np.ptp(rows), np.ptp(columns)) <= 16


def test_the_tint_is_faint_and_in_the_object_alone():
    for index in range(20):
        image, box = draw_image(RandomStream(1, index), 0)
        other, other_box = draw_image(RandomStream(1, index), 7)
        assert box == other_box
        x0, y0, x1, y1 = map(int, box)
        changed = (image != other).any(-1)
        assert changed.any()
        changed[y0:y1, x0:x1] = False
        assert not changed.any()
        body = ~badge_pixels(image, 0) & ~badge_pixels(other, 7)
        difference = np.abs(image.astype(int) - other).max(-1)
        assert 0 < np.median(difference[body & (difference > 0)]) < 60


def test_boxes_are_in_the_image_and_vary(sample):
    split = sample
    boxes = np.array([record.boxes[0] for record in split.records]) / SIZE
    assert boxes.min() >= 0
    assert boxes.max() <= 1
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, aspect = width * height, width / height
    assert np.quantile(area, 0.95) > 2.5 * np.quantile(area, 0.05)
    assert np.quantile(aspect, 0.05) < 0.6
    assert np.quantile(aspect, 0.95) > 1.6
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    assert middle.std(0).min() > 0.12


def test_fixed_boxes_score_low(sample):
    split = sample
    boxes = np.array([record.boxes[0] for record in split.records]) / SIZE

    def hits(side):
        low, high = (1 - side) / 2, (1 + side) / 2
        edges = np.minimum(boxes[:, 2:], high) - np.maximum(boxes[:, :2], low)
        overlap = edges.clip(0).prod(1)
        union = (boxes[:, 2:] - boxes[:, :2]).prod(1) + side**2 - overlap
        return (overlap / union >= 0.5).mean()

    assert hits(0.75) < 0.2
    assert hits(1.0) < 0.05
    assert max(hits(side) for side in (0.4, 0.5, 0.6, 0.7)) < 0.3


def test_the_body_stands_out_from_the_background(sample):
    """In brightness, over a region: the mean of the box's middle against that of the image's border."""
    split, images = sample, sample.pixels
    contrast = []
    for record, image in zip(split.records, images, strict=True):
        x0, y0, x1, y1 = map(int, record.boxes[0])
        keep = np.ones((SIZE, SIZE), bool)
        keep[y0:y1, x0:x1] = False
        middle = image[(3 * y0 + y1) // 4 : (y0 + 3 * y1) // 4, (3 * x0 + x1) // 4 : (x0 + 3 * x1) // 4]
        contrast.append(abs(float(np.median(middle)) - float(np.median(image[keep]))))
    assert np.quantile(contrast, 0.1) > 20
