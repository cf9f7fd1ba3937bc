"""Boxes at all thresholds of step 0.001: as the reference evaluator does it, and as this package does.

    pytest bench/bench_evaluator.py --benchmark-only

Single-threaded, processor time. `largest contour` is MaxBoxAcc's rule, `every contour` MaxBoxAccV2's. The maps
are blobs with noise, as of a trained model, on the token grid. The boxes' IoUs are compared before anything is
timed.
"""

import cv2
import numpy as np
import pytest
from implementations import shapes
from measure import Task

from scm_fast.benchmarks.table import CPU_TIME, Case
from scm_fast.evaluation.boxes import box_iou, resize_map
from scm_fast.evaluation.metrics import DELTAS
from scm_fast.evaluation.sweep import boxes_at_levels
from scm_fast.threshold import to_uint8

THRESHOLDS = np.arange(0, 1, 0.001)
LEVELS = np.unique((THRESHOLDS * 255).astype(int))
TRUTH = np.array([[50, 60, 170, 190]])
LEAST_SPEEDUP = 4


def make_maps(count: int, side: int) -> list[np.ndarray]:
    """Activation maps, each (side, side)."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:side, :side]
    maps = []
    for _ in range(count):
        centre, width = rng.uniform(4, 10, 2) * side / 14, rng.uniform(2, 5, 2) * side / 14
        blob = np.exp(-(((x - centre[0]) / width[0]) ** 2) - ((y - centre[1]) / width[1]) ** 2)
        maps.append(blob + rng.uniform(0.05, 0.3) * rng.random((side, side)))
    return maps


def literal(activation, every):
    """Best IoU at each of the thousand thresholds, (1000,)."""
    image = to_uint8(resize_map(activation))
    best = []
    for threshold in THRESHOLDS:
        _, foreground = cv2.threshold(image, int(threshold * image.max()), 255, cv2.THRESH_BINARY)
        contours = cv2.findContours(foreground, cv2.RETR_TREE, cv2.CHAIN_APPROX_SIMPLE)[0]
        if contours and not every:
            contours = [max(contours, key=cv2.contourArea)]
        boxes = []
        for contour in contours:
            x, y, w, h = cv2.boundingRect(contour)
            boxes.append((x, y, min(x + w, 223), min(y + h, 223)))
        best.append(boxes or [(0, 0, 0, 0)])
    counts = [len(boxes) for boxes in best]
    iou = box_iou(np.array([box for boxes in best for box in boxes]), TRUTH).max(axis=1)
    return np.maximum.reduceat(iou, np.cumsum(counts) - counts)


def fast(activation, every):
    """The same, each level once."""
    scores = resize_map(activation)
    found = boxes_at_levels(scores, LEVELS, TRUTH if every else TRUTH[:0], DELTAS[0])
    if every:
        iou = np.maximum.reduceat(box_iou(found.every, TRUTH).max(axis=1), found.starts)
    else:
        iou = box_iou(found.largest, TRUTH).max(axis=1)
    return iou[np.searchsorted(LEVELS, (THRESHOLDS * 255).astype(int))]


@pytest.fixture(autouse=True)
def single_thread(one_thread):
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    yield
    cv2.setNumThreads(threads)


def assert_same_figures(maps: list[np.ndarray], every: bool) -> None:
    for activation in maps:
        ours, theirs = fast(activation, every), literal(activation, every)
        if every:  # of all boxes, those that can decide a metric are kept
            for delta in DELTAS:
                assert np.array_equal(ours >= delta, theirs >= delta)
        else:
            assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(("count", "side"), shapes((8, 14), full=[(64, 14), (8, 28), (8, 64)]))
@pytest.mark.parametrize("every", [False, True], ids=["largest", "every"])
def test_boxes(compare, limits, every, count, side):
    maps = make_maps(count, side)
    assert_same_figures(maps, every)
    implementations = {
        "reference": Task(lambda _: [literal(activation, every) for activation in maps]),
        "scm_fast": Task(lambda _: [fast(activation, every) for activation in maps]),
    }
    variant = "every contour" if every else "largest contour"
    case = Case("evaluator", "forward", count, None, side, side, variant=variant)
    measured = compare(case, implementations, metric=CPU_TIME, memory=False)
    if limits and side == 14:
        assert measured.ratio("reference", "scm_fast") >= LEAST_SPEEDUP
