"""The evaluator against literal loops over images, thresholds and boxes; from one and several processes."""

import json
import multiprocessing
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from test_boxes import literal_boxes, literal_iou, literal_uint8

from scm_fast.errors import InputError
from scm_fast.evaluation import Evaluator, protocols
from scm_fast.evaluation.extraction import available_cores
from scm_fast.evaluation.metrics import KINDS, error_kinds
from scm_fast.evaluation.pixels import read_masks
from scm_fast.threshold import Threshold

CLASSES = 7


def make_images(count, seed=0, masks=False):
    """Return a dict per image with what a model and a data set would give."""
    rng = np.random.default_rng(seed)
    images = []
    for index in range(count):
        size = rng.integers(80, 600, 2)
        boxes = []
        for _ in range(1 if index % 3 else rng.integers(2, 5)):
            side = rng.uniform(0.2, 0.7, 2) * size
            corner = rng.uniform(0, 1, 2) * (size - side)
            boxes.append([*corner, *(corner + side)])
        y, x = np.mgrid[:14, :14] + 0.5
        centre = (np.array(boxes[0][:2]) + boxes[0][2:]) / 2 / size * 14
        radius = (np.array(boxes[0][2:]) - boxes[0][:2]) / size * 14 / 2
        maps = []
        for _ in range(CLASSES):
            middle, width = centre + rng.normal(0, 0.8, 2), radius * rng.uniform(0.4, 1.3, 2)
            blob = np.exp(-(((x - middle[0]) / width[0]) ** 2) - ((y - middle[1]) / width[1]) ** 2)
            maps.append(blob + rng.uniform(0, 0.4) * rng.random((14, 14)))
        scores = rng.random(CLASSES)
        label = int(rng.integers(CLASSES))
        scores[label] += 0.4
        judged = rng.choice([0, 1, 255], (224, 224), p=[0.6, 0.3, 0.1]).astype(np.uint8)
        images.append(
            {
                "index": index,
                "label": label,
                "scores": scores / scores.sum(),
                "maps": np.stack(maps).astype(np.float32),
                "boxes": np.array(boxes),
                "size": size,
                "mask": judged if masks and index % 2 else None,
            }
        )
    return images


def accumulate(evaluator, images, batch=4):
    for begin in range(0, len(images), batch):
        part = images[begin : begin + batch]
        order = np.stack([np.argsort(-image["scores"], kind="stable")[:5] for image in part])
        evaluator.accumulate(
            index=[image["index"] for image in part],
            label=[image["label"] for image in part],
            top_class=order,
            top_score=np.stack([image["scores"][o] for image, o in zip(part, order, strict=True)]),
            maps=np.stack(
                [image["maps"][[image["label"], o[0]]] for image, o in zip(part, order, strict=True)]
            ),
            boxes=[image["boxes"] for image in part],
            image_size=[image["size"] for image in part],
            masks=[image["mask"] for image in part],
        )


def literal_metrics(images, step, interpolation=cv2.INTER_CUBIC):
    """Every curve by loops: image, threshold, contour, ground-truth box."""
    thresholds = np.arange(0, 1, step)
    names = ["gt_known", "top1_loc", "top5_loc", "gt_known_published"]
    names += [f"gt_known@{d}" for d in (0.3, 0.7)] + [f"every_box@{d}" for d in (0.3, 0.5, 0.7)]
    curves = {name: np.zeros(len(thresholds)) for name in names}
    top1 = top5 = 0
    foreground = np.zeros(len(thresholds) + 2)
    background = np.zeros(len(thresholds) + 2)
    for image in images:
        width, height = (float(side) for side in image["size"])
        truth = []
        for x0, y0, x1, y1 in image["boxes"].tolist():
            scaled = [x0 * 224 / width, y0 * 224 / height, x1 * 224 / width, y1 * 224 / height]
            truth.append([int(scaled[0]), int(scaled[1]), min(int(scaled[2]), 223), min(int(scaled[3]), 223)])
        order = sorted(range(CLASSES), key=lambda c: -image["scores"][c])
        top1 += order[0] == image["label"]
        top5 += image["label"] in order[:5]
        true_scores, true_map = literal_uint8(image["maps"][image["label"]], interpolation=interpolation)
        _, best_map = literal_uint8(image["maps"][order[0]], interpolation=interpolation)
        if image["mask"] is not None:
            bins = [*thresholds, 1.0, 2.0, 3.0]
            foreground += np.histogram(true_scores[image["mask"] == 1], bins=bins)[0]
            background += np.histogram(true_scores[image["mask"] == 0], bins=bins)[0]
        for i, threshold in enumerate(thresholds):

            def best(found, truth=truth):
                return max(literal_iou(box, other) for box in found for other in truth)

            iou = best(literal_boxes(true_map, threshold, multiple=False))
            curves["gt_known"][i] += iou >= 0.5
            curves["gt_known@0.3"][i] += iou >= 0.3
            curves["gt_known@0.7"][i] += iou >= 0.7
            curves["top1_loc"][i] += iou >= 0.5 and order[0] == image["label"]
            curves["top5_loc"][i] += iou >= 0.5 and image["label"] in order[:5]
            iou = best(literal_boxes(best_map, threshold, multiple=False))
            curves["gt_known_published"][i] += iou >= 0.5
            iou = best(literal_boxes(true_map, threshold, multiple=True))
            for delta in (0.3, 0.5, 0.7):
                curves[f"every_box@{delta}"][i] += iou >= delta
    curves = {name: 100 * values / len(images) for name, values in curves.items()}
    tp, fp = foreground[::-1].cumsum(), background[::-1].cumsum()
    precision = np.divide(tp, tp + fp, out=np.zeros_like(tp), where=tp + fp > 0)
    area = sum(precision[i] * (tp[i] - tp[i - 1]) for i in range(1, len(tp))) / max(1, tp[-1])
    return 100 * top1 / len(images), 100 * top5 / len(images), curves, 100 * area


def middle_of_best(curve):
    best = [position for position, value in enumerate(curve) if value == max(curve)]
    return best[len(best) // 2]


@pytest.mark.parametrize(
    ("step", "interpolation", "count"),
    [(0.05, "cubic", 23), (0.01, "linear", 7), (0.001, "cubic", 2), (0.3, "cubic", 5)],
)
def test_every_metric_is_that_of_the_literal_loops(step, interpolation, count):
    images = make_images(count, seed=count, masks=True)
    evaluator = Evaluator(step=step, interpolation=interpolation)
    accumulate(evaluator, images)
    metrics = evaluator.compute()
    flag = cv2.INTER_CUBIC if interpolation == "cubic" else cv2.INTER_LINEAR
    top1, top5, curves, area = literal_metrics(images, step, flag)

    assert metrics.classification == {"top1_cls": pytest.approx(top1), "top5_cls": pytest.approx(top5)}
    assert set(metrics.curves) == set(curves)
    for name, expected in curves.items():
        assert metrics.curves[name] == pytest.approx(expected), name
    assert metrics.px_ap == pytest.approx(area)
    assert metrics.max_box_acc[0] == pytest.approx(curves["gt_known"].max())
    assert metrics.max_box_acc[1] == np.arange(0, 1, step)[middle_of_best(curves["gt_known"])]
    v2 = np.mean([curves[f"every_box@{delta}"].max() for delta in (0.3, 0.5, 0.7)])
    assert metrics.max_box_acc_v2 == pytest.approx(v2)


def test_protocols_read_the_curves_where_they_say():
    images, held_out = make_images(40), make_images(30, seed=1)
    evaluators = [Evaluator(step=0.01), Evaluator(step=0.01)]
    for evaluator, part in zip(evaluators, (images, held_out), strict=True):
        accumulate(evaluator, part)
    test, validation = (evaluator.compute() for evaluator in evaluators)
    curve, val_curve = test.curves["gt_known"], validation.curves["gt_known"]
    best, val_best = middle_of_best(curve), middle_of_best(val_curve)
    assert curve[best] != curve[val_best], "the case tells the protocols apart"

    fixed = protocols.fixed(test, Threshold(0.3))
    assert fixed.threshold == Threshold(0.3)
    assert fixed.metrics["gt_known"].value == curve[30]
    assert fixed.metrics["top5_loc"].value == test.curves["top5_loc"][30]

    heldout = protocols.heldout(test, validation, "global")
    assert heldout.threshold == Threshold(test.thresholds[val_best])
    assert heldout.metrics["gt_known"].value == curve[val_best]

    maxbox = protocols.maxbox(test)
    assert maxbox.metrics["gt_known"].value == maxbox.metrics["max_box_acc"].value == curve.max()
    assert maxbox.metrics["top1_loc"].value == test.curves["top1_loc"][best]
    assert heldout.metrics["gt_known"].value < maxbox.metrics["gt_known"].value
    # The best threshold of the split is the same whoever chooses the boxes.
    assert heldout.metrics["max_box_acc"] == maxbox.metrics["max_box_acc"]

    published = protocols.published(test)
    for name in ("top1_loc", "top5_loc", "gt_known_published"):
        assert published.metrics[name].value == test.curves[name].max()

    for result in (fixed, heldout, maxbox, published):
        assert sum(result.errors.values()) == pytest.approx(100)
        assert set(result.baselines) == {"full image", "centre box"}
        share = result.errors["correct"]
        iou = test.iou(test.boxes_at(result.threshold)[1])
        assert share == pytest.approx(100 * ((iou >= 0.5) & test.top1_right).mean())

    with pytest.raises(InputError, match="heldout, unboxed, fixed, maxbox, published, got 'best'"):
        protocols.result_under("best", test)


@pytest.mark.parametrize("step", [0.001, 0.3])
def test_any_threshold_can_be_fixed_at_any_step(step):
    images = make_images(6)
    evaluator = Evaluator(step)
    accumulate(evaluator, images)
    metrics = evaluator.compute()
    for threshold in (0, 0.1, 0.12, 1 / 3, 0.7071, 0.99999):
        boxes, _ = metrics.boxes_at(Threshold(threshold))
        for image, box in zip(images, boxes, strict=True):
            _, levels = literal_uint8(image["maps"][image["label"]])
            assert [box.tolist()] == literal_boxes(levels, threshold, multiple=False)


def test_an_iou_of_exactly_the_bound_is_a_hit():
    found = (50, 60, 149, 159)  # 100 x 100: a contour's box ends one pixel after its last
    activation = np.zeros((224, 224), np.float32)
    activation[60:159, 50:149] = 1
    truth = [[[50, 60, 149, 59 + rows]] for rows in (30, 50, 70)]  # IoU 0.3, 0.5 and 0.7
    evaluator = Evaluator(step=0.5)
    evaluator.accumulate(
        index=range(3),
        label=[0, 0, 0],
        top_class=np.tile(np.arange(5), (3, 1)),
        top_score=np.full((3, 5), 0.1),
        maps=np.tile(activation, (3, 2, 1, 1)),
        boxes=truth,
        image_size=np.full((3, 2), 224),
    )
    metrics = evaluator.compute()
    shares = {0.3: 100, 0.5: 200 / 3, 0.7: 100 / 3}
    for delta, share in shares.items():
        curve = "gt_known" if delta == 0.5 else f"gt_known@{delta}"
        assert metrics.curves[curve] == pytest.approx(share), curve
        assert metrics.curves[f"every_box@{delta}"] == pytest.approx(share)
    for curve in ("top1_loc", "gt_known_published"):
        assert metrics.curves[curve] == pytest.approx(shares[0.5]), curve
    constant = metrics.constant_box(found)
    assert constant["gt_known"] == constant["top1_loc"] == pytest.approx(shares[0.5])
    assert constant["max_box_acc_v2"] == pytest.approx(200 / 3)
    assert metrics.error_kinds(Threshold(0.5)) == ["more", "correct", "correct"]


def test_baselines_by_hand():
    evaluator = Evaluator(step=0.5)
    truth = [
        [[0, 0, 224, 224]],  # full image 1, centre box (168 / 224)^2 = 0.5625
        [[28, 28, 195, 195]],  # full image 0.5625, centre box 1
        [[0, 0, 100, 100]],  # neither: 101^2 / 224^2 = 0.20, and less
        [
            [0, 0, 10, 10],
            [0, 0, 223, 160],
        ],  # 161 / 224 = 0.72; centre 168 * 133 / (224 * 161 + 168 * 35) = 0.53
    ]
    evaluator.accumulate(
        index=range(4),
        label=[0, 1, 2, 2],
        top_class=[[0, 1, 2], [2, 1, 0], [2, 1, 0], [2, 0, 1]],
        top_score=np.full((4, 3), 0.3),
        maps=np.random.default_rng(0).random((4, 2, 7, 7)),
        boxes=truth,
        image_size=np.full((4, 2), 224),
    )
    metrics = evaluator.compute()
    full, centre = metrics.baselines()["full image"], metrics.baselines()["centre box"]
    assert full["gt_known"] == centre["gt_known"] == 75
    assert full["top1_loc"] == centre["top1_loc"] == 50
    assert full["top5_loc"] == 75
    assert full["max_box_acc_v2"] == pytest.approx((75 + 75 + 50) / 3)
    assert centre["max_box_acc_v2"] == pytest.approx((75 + 75 + 25) / 3)


@pytest.mark.parametrize(
    ("box", "truth", "right", "kind"),
    [
        ((0, 0, 99, 99), [(0, 0, 99, 119)], True, "correct"),
        ((0, 0, 99, 99), [(0, 0, 99, 119)], False, "class"),
        ((0, 0, 9, 9), [(200, 200, 209, 209)], False, "class"),
        ((0, 0, 99, 99), [(0, 0, 39, 99), (60, 0, 99, 99)], True, "multi_instance"),
        ((0, 0, 29, 29), [(0, 0, 99, 99)], True, "part"),
        ((0, 0, 99, 99), [(10, 10, 59, 59)], True, "more"),
        ((0, 0, 99, 99), [(150, 150, 200, 200)], True, "region"),
        ((0, 0, 99, 99), [(50, 50, 149, 149)], True, "region"),  # a quarter shared
        ((0, 0, 0, 0), [(50, 50, 149, 149)], True, "region"),  # no box at all
        # Both IoP 0.55 > 0.5 and IoG 0.8 > 0.7: the box is the larger one, so it takes in too much.
        ((0, 0, 0, 99), [(0, 45, 0, 112)], True, "more"),
    ],
)
def test_error_kinds_by_hand(box, truth, right, kind):
    counts = np.array([0, len(truth), 1, len(truth)])
    kinds = error_kinds(
        np.array([box, box, (5, 5, 9, 9), box]),
        np.array([*truth, (5, 5, 9, 9), *truth]),
        counts,
        np.array([True, right, True, right]),
    )
    assert kinds == [None, kind, "correct", kind]
    assert kind in KINDS


def test_error_kinds_of_nothing():
    assert error_kinds(np.zeros((0, 4)), np.zeros((0, 4)), np.zeros(0, int), np.zeros(0, bool)) == []
    assert error_kinds(np.zeros((2, 4)), np.zeros((0, 4)), np.zeros(2, int), np.ones(2, bool)) == [None, None]


def test_images_without_boxes_count_for_classification_only():
    images = make_images(9)
    for image in images[3:5]:
        image["boxes"] = np.zeros((0, 4))
    evaluator = Evaluator(step=0.02)
    accumulate(evaluator, images)
    some = evaluator.compute()
    assert len(some) == 9
    assert some.has_boxes.sum() == 7
    alone = Evaluator(step=0.02)
    accumulate(alone, [image for image in images if len(image["boxes"])])
    for name, curve in alone.compute().curves.items():
        assert np.array_equal(curve, some.curves[name])
    assert np.isnan(some.iou(some.boxes_at(Threshold(0.5))[0])).tolist() == [i in (3, 4) for i in range(9)]
    assert [kind is None for kind in some.error_kinds(Threshold(0.5))] == [i in (3, 4) for i in range(9)]

    for image in images:
        image["boxes"] = np.zeros((0, 4))
    evaluator = Evaluator(step=0.02)
    accumulate(evaluator, images)
    result = protocols.maxbox(evaluator.compute())
    assert set(result.metrics) == {"top1_cls", "top5_cls"}
    assert result.threshold is None


def test_an_image_seen_again_counts_once_and_order_is_no_matter():
    images = make_images(11, masks=True)
    once, again = Evaluator(step=0.01), Evaluator(step=0.01)
    accumulate(once, images)
    accumulate(again, images[::-1] + images[2:6])
    assert figures(again.compute()) == figures(once.compute())


def figures(metrics):
    """Everything that metrics say, comparable and exact."""
    result = protocols.maxbox(metrics)
    return {
        "count": len(metrics),
        "metrics": {name: [metric.value, str(metric.threshold)] for name, metric in result.metrics.items()},
        "errors": result.errors,
        "baselines": result.baselines,
        "curves": {name: curve.tolist() for name, curve in metrics.curves.items()},
        "boxes": metrics.boxes_at(Threshold(0.3))[1].tolist(),
        "index": metrics.table.index.tolist(),
    }


def evaluate_in_process(rank, world, folder, count, padded):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    images = make_images(count, masks=True)
    mine = list(range(rank, count, world))
    if padded and len(mine) < -(-count // world):
        mine.append(rank)  # as DistributedSampler does: every process gets equally many, some images twice
    evaluator = Evaluator(step=0.01, workers=1)
    accumulate(evaluator, [images[i] for i in mine])
    metrics = evaluator.compute()
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(figures(metrics), file)
    dist.destroy_process_group()


@pytest.mark.parametrize("padded", [False, True], ids=["uneven", "padded"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_give_the_figures_of_one(tmp_path, world, padded):
    count = 19  # a multiple of neither 2 nor 3
    evaluator = Evaluator(step=0.01)
    accumulate(evaluator, make_images(count, masks=True))
    expected = json.loads(json.dumps(figures(evaluator.compute())))
    mp.start_processes(evaluate_in_process, (world, str(tmp_path), count, padded), world, start_method="fork")
    for rank in range(world):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == expected


def test_a_process_without_images_takes_part(tmp_path):
    mp.start_processes(evaluate_in_process, (3, str(tmp_path), 2, False), 3, start_method="fork")
    assert json.loads((tmp_path / "2.json").read_text())["count"] == 2


def test_five_classes_have_no_top5():
    images = make_images(8)
    for classes, names in ((6, {"top5_cls", "top5_loc"}), (5, set()), (None, {"top5_cls", "top5_loc"})):
        evaluator = Evaluator(step=0.05, num_classes=classes)
        accumulate(evaluator, images)
        metrics = evaluator.compute()
        for result in (protocols.maxbox(metrics), protocols.published(metrics)):
            assert {name for name in result.metrics if name.startswith("top5")} == names
            assert all(("top5_loc" in figures) == bool(names) for figures in result.baselines.values())
        assert ("top5_loc" in metrics.curves) == bool(names)


def test_a_threshold_belongs_to_maps_that_are_resized_its_way():
    evaluator = Evaluator(step=0.1, interpolation="linear")
    accumulate(evaluator, make_images(4))
    metrics = evaluator.compute()
    assert protocols.maxbox(metrics).threshold.interpolation == "linear"
    with pytest.raises(InputError, match="for maps with cubic interpolation, these maps have linear"):
        metrics.boxes_at(Threshold(0.1))


def with_one_wrong_batch(good, wrong):
    with Evaluator(workers=2) as evaluator:
        evaluator.accumulate(**good)  # starts the workers
        evaluator.accumulate(**wrong)
        evaluator.compute()


def test_workers_and_opencv_are_left_as_they_were_when_an_evaluation_fails():
    before, threads = multiprocessing.active_children(), cv2.getNumThreads()
    cv2.setNumThreads(3)
    try:
        for wrong in ({"maps": np.zeros((1, 3, 7, 7))}, {"masks": [np.zeros((5, 5), np.uint8)]}):
            batch = {
                **{"index": [0], "label": [0], "top_class": [[0]], "top_score": [[1.0]]},
                **{"maps": np.random.default_rng(0).random((1, 2, 7, 7)), "boxes": [[]]},
                "image_size": [[10, 10]],
            }
            with pytest.raises(InputError, match="shape"):
                with_one_wrong_batch(batch, {**batch, **wrong})
            assert multiprocessing.active_children() == before
            assert cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(threads)


def test_masks_are_read_as_the_reference_does(tmp_path):
    """Union of the instances, ignore box minus foreground, nearest resize."""
    paths = {}
    for name, (x0, y0, x1, y1) in {
        "a": (0, 0, 50, 40),
        "b": (40, 10, 80, 60),
        "ignore": (30, 0, 120, 80),
    }.items():
        mask = np.zeros((100, 150), np.uint8)
        mask[y0:y1, x0:x1] = 255
        paths[name] = str(tmp_path / f"{name}.png")
        cv2.imwrite(paths[name], mask)
    judged = read_masks([paths["a"], paths["b"]], paths["ignore"])
    assert judged.shape == (224, 224)
    column, row = np.arange(224) * 150 // 224, np.arange(224) * 100 // 224
    y, x = np.meshgrid(row, column, indexing="ij")
    foreground = ((x < 50) & (y < 40)) | ((x >= 40) & (x < 80) & (y >= 10) & (y < 60))
    ignored = (x >= 30) & (x < 120) & (y < 80) & ~foreground
    assert np.array_equal(judged, np.where(foreground, 1, np.where(ignored, 255, 0)))
    assert set(np.unique(read_masks([paths["a"]]))) == {0, 1}
    with pytest.raises(InputError, match=r"missing\.png"):
        read_masks([str(tmp_path / "missing.png")])


def test_wrong_shapes_are_named():
    evaluator = Evaluator()
    with pytest.raises(InputError, match=r"maps must have shape \(1, 2, h, w\), got \(1, 3, 7, 7\)"):
        evaluator.accumulate([0], [0], [[0]], [[1.0]], np.zeros((1, 3, 7, 7)), [[]], [[10, 10]])


def test_all_cores_are_shared_out_to_the_processes_of_a_machine(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(12)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert available_cores() == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    assert available_cores() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "50")
    assert available_cores() == 1


def test_one_and_many_workers_give_the_same():
    images = make_images(7, masks=True)
    evaluations = []
    before = multiprocessing.active_children()
    for workers in (1, 3):
        evaluator = Evaluator(step=0.02, workers=workers)
        accumulate(evaluator, images)
        assert len(set(multiprocessing.active_children()) - set(before)) == workers
        evaluations.append(figures(evaluator.compute()))
    assert evaluations[0] == evaluations[1]


AFTER_OPENCV_THREADS = """
import cv2
import numpy as np
from scm_fast.evaluation import Evaluator

cv2.setNumThreads(4)
for _ in range(3):
    cv2.GaussianBlur(np.zeros((2000, 2000), np.float32), (31, 31), 5)  # starts OpenCV's threads
    evaluator = Evaluator(workers=3)
    maps = np.random.default_rng(0).random((8, 2, 14, 14))
    evaluator.accumulate(
        range(8), [0] * 8, [[1]] * 8, [[1.0]] * 8, maps, [[[0, 0, 9, 9]]] * 8, [[20, 20]] * 8
    )
    assert len(evaluator.compute()) == 8
    assert cv2.getNumThreads() == 4
"""


def test_workers_start_although_opencv_has_used_its_own_threads():
    subprocess.run([sys.executable, "-c", AFTER_OPENCV_THREADS], check=True, timeout=120)


ILSVRC_SIZED = """
import resource
import numpy as np
from scm_fast.evaluation import Evaluator, protocols

count, batch = 50_000, 500
rng = np.random.default_rng(0)
evaluator = Evaluator(step=0.001)
# How boxes are found is tested elsewhere; here one image's boxes stand for all.
reduced = evaluator._pool.submit(rng.random((2, 14, 14)), False, np.array([[10, 10, 200, 200]]), None)
evaluator._pool.submit = lambda *image: reduced
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for begin in range(0, count, batch):
    evaluator.accumulate(
        index=np.arange(begin, begin + batch),
        label=rng.integers(0, 1000, batch),
        top_class=rng.integers(0, 1000, (batch, 5)),
        top_score=rng.random((batch, 5)),
        maps=np.zeros((batch, 2, 14, 14), np.float32),
        boxes=[[[10, 10, 200, 200]]] * batch,
        image_size=np.full((batch, 2), 224),
    )
metrics = evaluator.compute()
result = protocols.maxbox(metrics)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(len(metrics), metrics.table.nbytes, (after - before) * 1024)
"""


def test_ilsvrc_sized_bookkeeping_stays_small():
    """50,000 images of 1,000 classes: what is kept grows neither with the classes nor with the maps."""
    run = subprocess.run([sys.executable, "-c", ILSVRC_SIZED], capture_output=True, text=True, check=True)
    count, kept, peak = (int(word) for word in run.stdout.split())
    assert count == 50_000
    assert kept < 2_400 * count  # 120 MB
    assert peak < 400e6
