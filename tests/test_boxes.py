"""Boxes against a slow, literal implementation of the reference evaluator's rules, on thousands of maps."""

import cv2
import numpy as np
import pytest

from scm_fast.errors import InputError
from scm_fast.evaluation import boxes as B
from scm_fast.evaluation.sweep import boxes_at_levels
from scm_fast.threshold import Threshold, to_uint8

ALL_LEVELS = np.arange(255)


def literal_uint8(activation, size=(224, 224), interpolation=cv2.INTER_CUBIC):
    activation = np.asarray(activation, dtype=np.float64)
    resized = cv2.resize(activation, size, interpolation=interpolation)
    if activation.min() == activation.max():
        resized[:] = activation.min()  # without the rounding noise of the cubic weights
    if np.isnan(resized).any() or resized.min() == resized.max():
        normalized = np.zeros_like(resized)
    else:
        normalized = resized - resized.min()
        normalized = normalized / normalized.max()
    return normalized, (normalized * 255).astype(np.uint8)


def literal_boxes(image, threshold, multiple):
    height, width = image.shape
    level = int(threshold * np.max(image))
    foreground = np.where(image > level, 255, 0).astype(np.uint8)
    contours = cv2.findContours(foreground, cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE)[0]
    if len(contours) == 0:
        return [[0, 0, 0, 0]]
    if not multiple:
        largest, largest_area = contours[0], cv2.contourArea(contours[0])
        for contour in contours[1:]:
            if cv2.contourArea(contour) > largest_area:
                largest, largest_area = contour, cv2.contourArea(contour)
        contours = [largest]
    found = []
    for contour in contours:
        xs, ys = contour[:, 0, 0], contour[:, 0, 1]
        x0, y0, x1, y1 = xs.min(), ys.min(), xs.max() + 1, ys.max() + 1
        found.append([x0, y0, min(x1, width - 1), min(y1, height - 1)])
    return found


def literal_iou(a, b):
    width = max(0, min(a[2], b[2]) - max(a[0], b[0]) + 1)
    height = max(0, min(a[3], b[3]) - max(a[1], b[1]) + 1)
    area_a = (a[2] - a[0] + 1) * (a[3] - a[1] + 1)
    area_b = (b[2] - b[0] + 1) * (b[3] - b[1] + 1)
    return width * height / (area_a + area_b - width * height)


def smooth(rng):
    y, x = np.mgrid[:14, :14]
    blobs = [
        rng.random() * np.exp(-((x - rng.uniform(0, 14)) ** 2 + (y - rng.uniform(0, 14)) ** 2) / s)
        for s in rng.uniform(2, 30, rng.integers(1, 5))
    ]
    return sum(blobs) + 0.05 * rng.random((14, 14))


def with_holes(rng):
    y, x = np.mgrid[:28, :28]
    radius = np.hypot(x - rng.uniform(8, 20), y - rng.uniform(8, 20))
    rings = np.cos(radius * rng.uniform(0.3, 1.5)) + 0.2 * rng.random((28, 28))
    return rings * (rng.random((28, 28)) > 0.05)


MAPS = {
    "smooth": smooth,
    "noise": lambda rng: rng.random((14, 14)),
    "rough": lambda rng: rng.random((56, 56)),
    "holes": with_holes,
    "ties": lambda rng: rng.integers(0, 3, (7, 7)),
    "sparse": lambda rng: (rng.random((32, 32)) > 0.97).astype(float),
    "negative": lambda rng: -rng.random((1, 5)) * 1e-9,
    "not square": lambda rng: rng.standard_normal((rng.integers(1, 20), rng.integers(1, 20))),
    "huge range": lambda rng: rng.standard_normal((14, 14)) ** 9 * 1e12,
    "constant": lambda rng: np.full((14, 14), rng.standard_normal()),
    "zero": lambda rng: np.zeros((3, 4)),
    "nan": lambda rng: np.where(rng.random((14, 14)) > 0.9, np.nan, 1.0),
}


def check_all_levels(scores, image, levels):
    height, width = image.shape
    anything = np.array([[0, 0, width - 1, height - 1]])
    fast = boxes_at_levels(scores, levels, anything, min_iou=0)
    ends = [*fast.starts[1:], len(fast.every)]
    # Ground truth near the size of holes, so that some of them reach an IoU of 0.3.
    rng = np.random.default_rng(int(image.sum()) + len(levels))
    truth = np.sort(rng.integers(0, [width, height], (3, 2, 2)), axis=1).reshape(-1, 4)
    judged = boxes_at_levels(scores, levels, truth, min_iou=0.3)
    judged_ends = [*judged.starts[1:], len(judged.every)]
    top = int(image.max())
    for row, level in enumerate(levels):
        # A map that is not all zero reaches 255, so that level l is the threshold l / 255.
        threshold = (level + 0.5) / 255 if top else 0.5
        expected = literal_boxes(image, threshold, multiple=True)
        assert sorted(fast.every[fast.starts[row] : ends[row]].tolist()) == sorted(expected)
        assert [fast.largest[row].tolist()] == literal_boxes(image, threshold, multiple=False)
        best = B.box_iou(judged.every[judged.starts[row] : judged_ends[row]], truth).max()
        expected_best = B.box_iou(expected, truth).max()
        assert best == expected_best or max(best, expected_best) < 0.3
    assert np.array_equal(judged.largest, fast.largest)
    assert np.array_equal(boxes_at_levels(scores, levels, truth[:0], 0.3).largest, fast.largest)


@pytest.mark.parametrize("kind", MAPS)
def test_single_thresholds_are_those_of_the_literal_rules(kind):
    rng = np.random.default_rng(1)
    for _ in range(200):
        activation = MAPS[kind](rng)
        scores, image = literal_uint8(activation)
        ours = B.resize_map(activation)
        assert np.array_equal(ours, scores)
        assert np.array_equal(to_uint8(ours), image)
        threshold = rng.choice([0.0, 0.1, 0.999, rng.random()])
        level = Threshold(threshold).level(ours)
        assert [B.largest_box(image, level).tolist()] == literal_boxes(image, threshold, multiple=False)


@pytest.mark.parametrize("kind", MAPS)
def test_all_levels_at_once_are_those_of_the_literal_rules(kind):
    rng = np.random.default_rng(2)
    for repeat in range(2 if kind in ("rough", "sparse") else 6):
        size = (224, 224) if repeat == 0 else (int(rng.integers(5, 97)), int(rng.integers(5, 97)))
        scores, image = literal_uint8(MAPS[kind](rng), size)
        check_all_levels(scores, image, ALL_LEVELS)


@pytest.mark.parametrize("kind", MAPS)
def test_some_levels_are_those_of_the_literal_rules(kind):
    """Many small maps, each with the levels of a coarser step: thousands of maps in all."""
    rng = np.random.default_rng(3)
    for _ in range(250):
        interpolation = rng.choice([cv2.INTER_CUBIC, cv2.INTER_LINEAR, cv2.INTER_NEAREST])
        size = tuple(int(side) for side in rng.integers(2, 40, 2))
        scores, image = literal_uint8(MAPS[kind](rng), size, interpolation)
        levels = np.sort(rng.choice(255, rng.integers(1, 12), replace=False))
        check_all_levels(scores, image, levels)


def test_plateaus_and_binary_maps():
    """Pixels of few values, where components appear, merge and fill in one step of the level."""
    rng = np.random.default_rng(4)
    for values in (2, 3, 5):
        for _ in range(150):
            scores = rng.integers(0, values, rng.integers(2, 16, 2)) / (values - 1)
            if scores.max() == 1:
                image = (scores * 255).astype(np.uint8)
                check_all_levels(scores, image, np.array([0, 60, 63, 64, 100, 127, 128, 200, 254]))


def test_linear_interpolation():
    rng = np.random.default_rng(5)
    for _ in range(50):
        activation = rng.random((14, 14))
        expected, _ = literal_uint8(activation, interpolation=cv2.INTER_LINEAR)
        assert np.array_equal(B.resize_map(activation, interpolation="linear"), expected)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((0, 0, 9, 9), (0, 0, 9, 9), 1.0),
        ((0, 0, 9, 9), (5, 5, 14, 14), 25 / 175),
        ((0, 0, 9, 9), (10, 0, 19, 9), 0.0),  # neighbours share no pixel
        ((0, 0, 9, 9), (9, 9, 18, 18), 1 / 199),  # one shared pixel
        ((0, 0, 0, 0), (0, 0, 0, 0), 1.0),  # one pixel
        ((0, 0, 0, 0), (0, 0, 223, 223), 1 / 224**2),
        ((28, 28, 195, 195), (0, 0, 223, 223), 168**2 / 224**2),
        ((10, 20, 59, 119), (10, 20, 59, 219), 0.5),
    ],
)
def test_iou_by_hand(a, b, expected):
    assert B.box_iou([a], [b])[0, 0] == pytest.approx(expected, abs=1e-15)
    assert B.box_iou([b], [a])[0, 0] == pytest.approx(expected, abs=1e-15)
    assert B.box_iou(np.array([a], np.uint8), np.array([b], np.uint8))[0, 0] == pytest.approx(expected)


def test_iou_of_many_boxes():
    rng = np.random.default_rng(6)
    a = np.sort(rng.integers(0, 224, (40, 2, 2)), axis=1).reshape(-1, 4)
    b = np.sort(rng.integers(0, 224, (30, 2, 2)), axis=1).reshape(-1, 4)
    expected = [[literal_iou(p, q) for q in b.tolist()] for p in a.tolist()]
    assert np.array_equal(B.box_iou(a, b), expected)


def test_ground_truth_is_cut_to_whole_pixels_of_the_evaluation_size():
    # 60 * 224 / 500 = 26.88, 27 * 224 / 375 = 16.13, 385 * 224 / 500 = 172.48, 331 * 224 / 375 = 197.72
    assert B.scale_to_evaluation([[60, 27, 385, 331]], (500, 375)).tolist() == [[26, 16, 172, 197]]
    # The far corner of the image is the last pixel.
    assert B.scale_to_evaluation([[0, 0, 500, 375]], (500, 375)).tolist() == [[0, 0, 223, 223]]
    assert B.scale_to_evaluation(np.zeros((0, 4)), (500, 375)).shape == (0, 4)


def test_boxes_go_back_to_original_pixels():
    assert B.scale_to_image([[56, 112, 168, 223]], (448, 112)).tolist() == [[112, 56, 336, 112]]
    rng = np.random.default_rng(7)
    original = np.sort(rng.uniform(0, 1, (50, 2, 2)), axis=1).reshape(-1, 4) * [640, 480, 640, 480]
    scaled = B.scale_to_evaluation(original, (640, 480))
    back = B.scale_to_image(scaled, (640, 480))
    assert (np.abs(back - original) <= np.tile([640 / 224, 480 / 224], 2)).all()


@pytest.mark.parametrize("value", [0, 0.1, 0.3, 1, -7, np.nan, np.inf])
def test_constant_maps_have_no_box(value):
    scores = B.resize_map(np.full((14, 14), value))
    assert (scores == 0).all()
    assert B.largest_box(to_uint8(scores), 0).tolist() == [0, 0, 0, 0]


def test_what_is_refused():
    with pytest.raises(InputError, match=r"shape \(h, w\), got \(2, 3, 4\)"):
        B.resize_map(np.zeros((2, 3, 4)))
    with pytest.raises(InputError, match="interpolation must be one of cubic, linear, got 'nearest'"):
        B.resize_map(np.zeros((2, 3)), interpolation="nearest")
    for step in (0, -0.1, 1.5):
        with pytest.raises(InputError, match="step"):
            B.thresholds(step)


def blobs(*rectangles):
    """A map at the evaluation size, zero but for (x0, y0, x1, y1, value)."""
    scores = np.zeros((224, 224))
    for x0, y0, x1, y1, value in rectangles:
        scores[y0:y1, x0:x1] = value
    return scores


def found_in(scores, max_boxes, threshold=0.1, size=(224, 224)):
    """(boxes, scores) as `locate` gives them."""
    located = B.locate(scores, Threshold(threshold), size, max_boxes)
    return [tuple(map(round, box)) for box, _ in located.boxes], [score for _, score in located.boxes]


def test_several_objects():
    """The largest first, then the others by their share of the map: a small bright one before a large dim one."""
    large, dim, bright = (10, 10, 90, 110, 1.0), (120, 10, 180, 90, 0.6), (120, 120, 180, 180, 1.0)
    scores = blobs(large, dim, bright)
    boxes, shares = found_in(scores, 5)
    assert boxes == [large[:4], bright[:4], dim[:4]]
    sums = np.array([8000, 3600, 0.6 * 4800])
    assert shares == pytest.approx(sums / sums.sum())
    for max_boxes in (1, 2, 3):
        assert found_in(scores, max_boxes) == (boxes[:max_boxes], shares[:max_boxes])
    doubled, _ = found_in(scores, 2, size=(448, 672))
    assert doubled == [(20, 30, 180, 330), (240, 360, 360, 540)]


def test_a_dim_object_may_be_the_largest():
    """It stays the first, as in evaluation; the score of the other is then higher."""
    dim, bright = (10, 10, 90, 90, 0.2), (120, 120, 180, 180, 1.0)
    boxes, shares = found_in(blobs(bright, dim), 2)
    assert boxes == [dim[:4], bright[:4]]
    assert shares == pytest.approx([1280 / 4880, 3600 / 4880])


def test_what_lies_outside_lowers_the_score():
    square = (20, 20, 120, 120, 1.0)
    assert found_in(blobs(square), 1)[1] == [pytest.approx(1)]
    haze = blobs(
        (0, 0, 224, 224, 0.05), square
    )  # normalised: min-max takes a constant away, so not everywhere
    haze[:, :10] = 0
    boxes, (score,) = found_in(haze, 1)
    assert boxes == [square[:4]]
    assert score == pytest.approx(10_000 / haze.sum())


def test_faint_objects_are_none():
    """Parts of one object in a photo are no second one: a quarter of the first one's share is needed."""
    first = (10, 10, 110, 90, 1.0)
    for width, objects in ((25, 2), (24, 1)):  # of 80 pixels in height, as the first, which is 100 wide
        assert len(found_in(blobs(first, (130, 100, 130 + width, 180, 1.0)), 5)[0]) == objects


def test_equal_objects_are_found_once_each():
    squares = [(20, 20, 60, 60, 1.0), (120, 20, 160, 60, 1.0), (20, 120, 60, 160, 1.0)]
    boxes, shares = found_in(blobs(*squares), 3)
    assert sorted(boxes) == sorted(square[:4] for square in squares)
    assert shares == pytest.approx([1 / 3] * 3)


def test_a_hole_is_no_object_and_neither_is_what_lies_in_it():
    ring, hole, island = (20, 20, 200, 200, 1.0), (50, 50, 170, 170, 0.0), (80, 80, 140, 140, 1.0)
    assert found_in(blobs(ring, hole), 5)[0] == [ring[:4]]
    assert found_in(blobs(ring, hole, island), 5)[0] == [ring[:4]]


def test_specks_are_no_objects():
    """A contour's area is that of the polygon through its outer pixels: 9 x 9 pixels have 64."""
    small = (10, 10, 24, 24, 1.0)
    assert found_in(blobs(small, (100, 100, 109, 109, 1.0)), 5)[0] == [small[:4], (100, 100, 109, 109)]
    assert found_in(blobs(small, (100, 100, 108, 109, 1.0)), 5)[0] == [small[:4]]
    dim = (10, 10, 111, 91, 0.2)  # 100 x 80: a tenth is 20 x 40
    assert found_in(blobs(dim, (150, 100, 171, 141, 1.0)), 5)[0] == [dim[:4], (150, 100, 171, 141)]
    assert found_in(blobs(dim, (150, 100, 171, 140, 1.0)), 5)[0] == [dim[:4]]
    # Alone, a speck is what there is.
    assert found_in(blobs((100, 100, 103, 103, 1.0)), 5)[0] == [(100, 100, 103, 103)]


@pytest.mark.parametrize("kind", MAPS)
def test_the_first_of_several_boxes_is_the_only_one_of_one(kind):
    rng = np.random.default_rng(8)
    for _ in range(50):
        activation = MAPS[kind](rng)
        one = B.locate(activation, Threshold(0.2), (300, 200))
        many = B.locate(activation, Threshold(0.2), (300, 200), 4)
        assert one.boxes == many.boxes[:1]
        assert 1 <= len(many.boxes) <= 4
        assert len({box for box, _ in many.boxes}) == len(many.boxes)
        first, *others = [score for _, score in many.boxes]
        assert others == sorted(others, reverse=True)
        assert 0 <= first + sum(others) <= 1 + 1e-9


def test_a_constant_map_has_no_other_boxes():
    assert found_in(np.full((14, 14), 0.5), 5) == ([(0, 0, 224, 224)], [0])
