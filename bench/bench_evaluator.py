"""Boxes at all thresholds of step 0.001: as the reference evaluator does it, and as this package does.

    pytest bench/bench_evaluator.py

Single-threaded. `single` is MaxBoxAcc's rule (the largest contour), `every` MaxBoxAccV2's (all contours). The
maps are blobs with noise, as of a trained model, on a 14 x 14 grid. The figures are compared before anything
is timed; `test_ratio` alternates the two and fails below a factor of 4.
"""

import statistics
import time

import cv2
import numpy as np
import pytest

from scm_fast.evaluation.boxes import box_iou, resize_map, to_uint8
from scm_fast.evaluation.evaluation import DELTAS
from scm_fast.evaluation.sweep import boxes_at_levels

THRESHOLDS = np.arange(0, 1, 0.001)
LEVELS = np.unique((THRESHOLDS * 255).astype(int))
TRUTH = np.array([[50, 60, 170, 190]])


def make_maps(count=8):
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:14, :14]
    maps = []
    for _ in range(count):
        centre, width = rng.uniform(4, 10, 2), rng.uniform(2, 5, 2)
        blob = np.exp(-(((x - centre[0]) / width[0]) ** 2) - ((y - centre[1]) / width[1]) ** 2)
        maps.append(blob + rng.uniform(0.05, 0.3) * rng.random((14, 14)))
    return maps


MAPS = make_maps()


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


IMPLEMENTATIONS = {"literal": literal, "fast": fast}


def seconds(function, every):
    begin = time.process_time()
    for activation in MAPS:
        function(activation, every)
    return time.process_time() - begin


@pytest.fixture(autouse=True, scope="module")
def single_thread():
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    yield
    cv2.setNumThreads(threads)


@pytest.fixture(autouse=True, scope="module")
def same_figures():
    for activation in MAPS:
        assert np.array_equal(fast(activation, False), literal(activation, False))
        for delta in DELTAS:
            assert np.array_equal(fast(activation, True) >= delta, literal(activation, True) >= delta)


@pytest.mark.parametrize("every", [False, True], ids=["single", "every"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_boxes(benchmark, implementation, every):
    benchmark.group = "every" if every else "single"
    function = IMPLEMENTATIONS[implementation]
    benchmark.pedantic(lambda: [function(m, every) for m in MAPS], rounds=5, warmup_rounds=1)
    benchmark.extra_info["images"] = len(MAPS)


@pytest.mark.parametrize("every", [False, True], ids=["single", "every"])
def test_ratio(every):
    """Processor time of this thread, interleaved, so that a busy machine slows both alike."""
    ratios = [seconds(literal, every) / seconds(fast, every) for _ in range(5)]
    print(f"\n{statistics.median(ratios):.1f}x ({min(ratios):.1f} to {max(ratios):.1f})")
    assert statistics.median(ratios) >= 4
