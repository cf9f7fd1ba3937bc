"""The built-in sets: the same bytes everywhere, and what makes one of them a localisation problem."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from scm_fast.data import open_dataset
from scm_fast.data.drawing import SIZE, TEXTURES, RandomStream
from scm_fast.data.layouts.synthetic import (
    CLASS_NAMES,
    COLOURS,
    PAIRS,
    PLUMAGE,
    SETS,
    SPLITS,
    draw_image,
    draw_pretraining_image,
    draw_split,
)
from scm_fast.errors import InputError

# Of the first 24 images of a split, and of their labels and boxes.
CHECKSUMS = {
    ("synthetic", "train"): "fc9dddf095244726 5338a540ffe22763",
    ("synthetic", "val"): "ef794a49007238a5 79fe7a189d5ca840",
    ("synthetic", "test"): "bd902b8eb953b63f fa14d53ba6ac6c4f",
    ("synthetic-pretraining", "train"): "8ad572d189a29e0b e02f4a52dded6904",
    ("synthetic-pretraining", "val"): "8c977df8389813e3 10dab3c22a2dd441",
    ("synthetic-pretraining", "test"): "f1c5a13c8133c6b8 73d2009181ad8d25",
}


@pytest.fixture(scope="module")
def sample():
    return draw_split("synthetic", "test", 360)


def annotations(split):
    return json.dumps([(record.id, record.label, record.boxes) for record in split.records])


@pytest.mark.parametrize(("which", "name"), CHECKSUMS, ids="-".join)
def test_the_same_bytes_on_every_machine(which, name):
    split = draw_split(which, name, 24)
    found = [
        hashlib.sha256(data).hexdigest()[:16]
        for data in (split.pixels.tobytes(), annotations(split).encode())
    ]
    assert " ".join(found) == CHECKSUMS[which, name]


def test_the_same_bytes_in_another_process():
    code = (
        "import hashlib; from scm_fast.data.layouts.synthetic import draw_split;"
        "print(hashlib.sha256(draw_split('synthetic', 'val', 24).pixels.tobytes()).hexdigest()[:16])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == CHECKSUMS["synthetic", "val"].split()[0]


def test_random_stream_is_splitmix64():
    """Compare with SplitMix64 in Python integers."""

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


def test_sets_splits_and_seeds_differ():
    images = [draw_split(which, name, 5).pixels for which in SETS for name in SPLITS]
    images.append(draw_split("synthetic", "train", 5, seed=7).pixels)
    flat = {image.tobytes() for group in images for image in group}
    assert len(flat) == 35


@pytest.mark.parametrize("which", SETS)
def test_opened_by_name(which):
    dataset = open_dataset(which, "val")
    count, classes = SETS[which].counts["val"], len(SETS[which].class_names)
    assert (len(dataset), dataset.num_classes, dataset.layout) == (count, classes, "synthetic")
    assert dataset.in_memory
    assert dataset.load(3).size == dataset.size(3) == (SIZE, SIZE)
    assert np.array_equal(dataset.load_tensor(3).permute(1, 2, 0).numpy(), np.asarray(dataset.load(3)))
    assert dataset.records[3].path is None
    assert np.bincount(dataset.labels).min() >= count // classes
    with pytest.raises(InputError, match="no split 'trainval'"):
        open_dataset(which, "trainval")


def test_the_pretraining_has_other_classes():
    ours, others = (set(drawn.class_names) for drawn in SETS.values())
    assert not ours & others


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    (tmp_path / "synthetic").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no known layout"):
        open_dataset("synthetic", "val")


def near(image, colour, reach=26):
    """Mask of the pixels of a saturated colour, with its shades and grain; plumage is far from all of them."""
    return np.abs(image.astype(int) - COLOURS[colour]).max(-1) <= reach


def test_the_class_is_clear_in_a_small_part(sample):
    shares = []
    for record, image in zip(sample.records, sample.pixels, strict=True):
        x0, y0, x1, y1 = map(int, record.boxes[0])
        disc, ring = (near(image, colour) for colour in PAIRS[record.label])
        assert disc.sum() >= 15  # it is there, whole
        assert ring.sum() >= 30
        badge = disc | ring
        assert badge[y0:y1, x0:x1].sum() / badge.sum() > 0.95  # and in the object alone
        rows, columns = np.nonzero(badge[y0:y1, x0:x1])
        shares.append((np.ptp(rows) + 1) * (np.ptp(columns) + 1) / ((x1 - x0) * (y1 - y0)))
    assert np.mean(np.array(shares) < 0.5) > 0.95  # a box around it is no hit


def test_labels_change_the_creature_alone():
    for index in range(20):
        image, box = draw_image(RandomStream(1, index), 0)
        other, other_box = draw_image(RandomStream(1, index), CLASS_NAMES.index("yellow in blue"))
        assert box == other_box
        x0, y0, x1, y1 = map(int, box)
        changed = (image != other).any(-1)
        assert changed[y0:y1, x0:x1].mean() > 0.3, "its whole plumage, not the badge alone"
        changed[y0:y1, x0:x1] = False
        assert not changed.any()


def test_plumage_is_fainter_than_the_badge():
    for index in range(20):
        image, _ = draw_image(RandomStream(1, index), 0)
        other, _ = draw_image(RandomStream(1, index), CLASS_NAMES.index("yellow in blue"))
        badge = np.zeros((SIZE, SIZE), bool)
        for picture, pair in ((image, ("red", "green")), (other, ("yellow", "blue"))):
            badge |= near(picture, pair[0]) | near(picture, pair[1])
        difference = np.abs(image.astype(int) - other).max(-1)
        assert np.median(difference[~badge & (difference > 0)]) < np.median(difference[badge]) * 0.75


def test_other_bodies_are_of_no_creatures_hue():
    """Two labels show the background beside a creature: no pixel there is as red, green, blue or yellow."""
    for index in range(40):
        image, box = draw_image(RandomStream(2, index), index % 12)
        x0, y0, x1, y1 = map(int, box)
        outside = np.ones((SIZE, SIZE), bool)
        outside[y0:y1, x0:x1] = False
        for hue in PLUMAGE:
            assert not (near(image, hue) & outside).any()


def test_an_image_has_more_to_see_than_its_object():
    """Much of the image beside the creature differs from its background in brightness, as the creature does."""
    beside = []
    for index in range(40):
        image, box = draw_image(RandomStream(3, index), index % 12)
        x0, y0, x1, y1 = map(int, box)
        outside = np.ones((SIZE, SIZE), bool)
        outside[y0:y1, x0:x1] = False
        grey = image.astype(int).mean(-1)
        background = np.median(np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]]))
        beside.append((np.abs(grey - background)[outside] > 35).mean())
    assert np.median(beside) > 0.08


def test_the_pretraining_shows_one_body_of_a_hue_and_texture():
    for index in range(20):
        image, box = draw_pretraining_image(RandomStream(1, index), 0)
        other, other_box = draw_pretraining_image(RandomStream(1, index), len(TEXTURES))  # another hue
        assert box == other_box
        x0, y0, x1, y1 = map(int, box)
        changed = (image != other).any(-1)
        assert changed[y0:y1, x0:x1].mean() > 0.5
        changed[y0:y1, x0:x1] = False
        assert not changed.any()
        for colour in COLOURS:
            assert near(image, colour).sum() < 15, "no badge"


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
    """Compare brightness over a region: the mean of the box's middle against that of the image's border."""
    split, images = sample, sample.pixels
    contrast = []
    for record, image in zip(split.records, images, strict=True):
        x0, y0, x1, y1 = map(int, record.boxes[0])
        keep = np.ones((SIZE, SIZE), bool)
        keep[y0:y1, x0:x1] = False
        middle = image[(3 * y0 + y1) // 4 : (y0 + 3 * y1) // 4, (3 * x0 + x1) // 4 : (x0 + 3 * x1) // 4]
        contrast.append(abs(float(np.median(middle)) - float(np.median(image[keep]))))
    assert np.quantile(contrast, 0.1) > 20
