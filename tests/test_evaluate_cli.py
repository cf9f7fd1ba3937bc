"""Real runs of evaluate.py, alone and under torchrun, on images and a checkpoint that are made here."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_boxes import literal_uint8

import scm_fast
from scm_fast.cli import evaluate as command
from scm_fast.cli.program import Parser
from scm_fast.data import DataSource
from scm_fast.evaluation import EvaluationSettings, read_masks, write_results
from scm_fast.evaluation import evaluate as run_evaluation
from scm_fast.evaluation.boxes import box_iou, scale_to_evaluation
from scm_fast.evaluation.predictor import Predictor
from scm_fast.models import LocalizationModel
from scm_fast.threshold import Threshold

ROOT = Path(__file__).parents[1]
CLASSES = ("disc", "ring", "square")
MOST_ROOMS = 32
FIGURES = ("protocol", "threshold", "images", "images_with_boxes", "metrics", "errors", "baselines", "curves")


def make_data(root, splits=(("train", 6), ("val", 7), ("test", 17)), boxes=True):
    """An ImageFolder of bright shapes on noise, with COCO boxes."""
    rng = np.random.default_rng(0)
    for split, count in splits:
        images, annotations = [], []
        for number in range(count):
            label = number % len(CLASSES)
            width, height = rng.integers(60, 140, 2)
            w, h = rng.integers(20, 50, 2)
            x, y = rng.integers(0, width - w), rng.integers(0, height - h)
            pixels = rng.integers(0, 90, (height, width, 3), dtype=np.uint8)
            pixels[y : y + h, x : x + w, label] = 250
            name = f"{split}/{CLASSES[label]}/{number:03d}.jpg"
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / name, quality=92)
            images.append({"id": number, "file_name": name, "width": int(width), "height": int(height)})
            box = [int(v) for v in (x, y, w, h)]
            annotations.append({"id": number, "image_id": number, "category_id": label, "bbox": box})
        if boxes:
            categories = [{"id": i, "name": name} for i, name in enumerate(CLASSES)]
            content = {"images": images, "annotations": annotations, "categories": categories}
            (root / f"{split}.json").write_text(json.dumps(content))
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    model = scm_fast.create_model(
        "deit_tiny_patch16_224", num_classes=3, method="scm", pretrained=False, image_size=64
    )
    folder = tmp_path_factory.mktemp("checkpoint")
    scm_fast.save_model(model, folder)
    return folder


def evaluate(*arguments, processes=None):
    """Run evaluate.py as a user would. One image per batch: rounding in the network depends on the batch."""
    launch = [] if processes is None else ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
    if launch:
        launch += ["--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    return subprocess.run(
        [
            sys.executable,
            *launch,
            str(ROOT / "evaluate.py"),
            "--batch-size=1",
            "--workers=0",
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )


def read(folder):
    metrics = json.loads((folder / "metrics.json").read_text())
    with (folder / "predictions.csv").open() as file:
        return metrics, list(csv.DictReader(file))


@pytest.fixture(scope="module")
def alone(data, checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    run = evaluate("--checkpoint", checkpoint, "--data", data, "--report", "--out", out)
    assert run.returncode == 0, run.stderr
    return run, out


def test_a_run_writes_what_it_says(alone, data):
    run, out = alone
    metrics, rows = read(out)
    assert metrics["protocol"] == "heldout"
    assert "best GT-Known on 7 held-out images" in metrics["threshold_choice"]
    assert metrics["images"] == len(rows) == 17
    assert metrics["left_out"] == []
    for name in ("Top-1 localisation", "GT-Known", "MaxBoxAccV2", "full image", "centre box", "per second"):
        assert name in run.stdout
    assert set(metrics["metrics"]) == {
        *("top1_cls", "top1_loc", "gt_known", "gt_known_published", "max_box_acc", "max_box_acc_v2"),
        "mean_iou",
    }
    # The figures follow from the lines of predictions.csv.
    value = {name: metric["value"] for name, metric in metrics["metrics"].items()}
    right = np.array([row["predicted"] == row["label"] for row in rows])
    known = np.array([float(row["true_class_iou"]) >= 0.5 for row in rows])
    assert value["top1_cls"] == pytest.approx(100 * right.mean())
    assert value["gt_known"] == pytest.approx(100 * known.mean())
    assert value["top1_loc"] == pytest.approx(100 * (known & right).mean())
    published = np.mean([float(row["iou"]) >= 0.5 for row in rows])
    assert value["gt_known_published"] == pytest.approx(100 * published)
    # Boxes are in pixels of the original images.
    truth = json.loads((data / "test.json").read_text())
    sizes = {image["file_name"]: (image["width"], image["height"], image["id"]) for image in truth["images"]}
    for row in rows:
        width, height, number = sizes[row["image"]]
        x, y, w, h = truth["annotations"][number]["bbox"]
        box = [float(row[f"{corner}"]) for corner in ("x0", "y0", "x1", "y1")]
        assert 0 <= box[0] < box[2] <= width
        assert 0 <= box[1] < box[3] <= height
        scaled = np.minimum(np.rint(np.array(box) * 224 / [width, height, width, height]), 223).astype(int)
        truth_scaled = scale_to_evaluation([[x, y, x + w, y + h]], (width, height))
        assert float(row["iou"]) == pytest.approx(box_iou([scaled], truth_scaled)[0, 0], abs=1e-4)


def test_coco_json_names_the_same_boxes(alone):
    _, out = alone
    _, rows = read(out)
    coco = json.loads((out / "predictions.coco.json").read_text())
    assert [category["name"] for category in coco["categories"]] == list(CLASSES)
    assert [image["file_name"] for image in coco["images"]] == [row["image"] for row in rows]
    for row, annotation in zip(rows, coco["annotations"], strict=True):
        x, y, w, h = annotation["bbox"]
        expected = [float(row[corner]) for corner in ("x0", "y0", "x1", "y1")]
        assert [x, y, x + w, y + h] == pytest.approx(expected, abs=0.02)
        assert annotation["category_id"] == int(row["predicted"]) + 1


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_torchrun_gives_the_same_figures(alone, data, checkpoint, tmp_path, processes):
    run = evaluate("--checkpoint", checkpoint, "--data", data, "--out", tmp_path, processes=processes)
    assert run.returncode == 0, run.stderr
    expected, expected_rows = read(alone[1])
    metrics, rows = read(tmp_path)
    for name in FIGURES:
        assert metrics[name] == expected[name], name
    assert rows == expected_rows
    assert run.stdout.count("GT-Known, best") == 1, "only one process prints"


def test_a_truncated_image_is_named_or_left_out(data, checkpoint, tmp_path):
    broken = make_data(tmp_path / "data")
    image = broken / "test" / "ring" / "004.jpg"
    image.write_bytes(image.read_bytes()[:900])
    common = ("--checkpoint", checkpoint, "--data", broken, "--protocol", "maxbox", "--out", tmp_path / "out")
    run = evaluate(*common)
    assert run.returncode == 2
    assert "test/ring/004.jpg" in run.stderr
    assert "Traceback" not in run.stderr
    run = evaluate(*common, "--skip-bad-images", processes=2)
    assert run.returncode == 0, run.stderr
    assert "left out 1 image" in run.stdout
    assert "test/ring/004.jpg" in run.stdout
    metrics, rows = read(tmp_path / "out")
    assert metrics["images"] == len(rows) == 16
    assert [problem["image"] for problem in metrics["left_out"]] == ["test/ring/004.jpg"]


@pytest.fixture
def in_process(capsys):
    """The command in this process, errors raised: seconds faster, for what ends early."""

    def run(*arguments):
        parser = Parser("scm-fast evaluate", None)
        command.add_arguments(parser)
        command.execute(parser.parse_args(["--workers=0", *map(str, arguments)]))
        return capsys.readouterr().out

    return run


def test_an_image_without_a_box_is_named(in_process, checkpoint, tmp_path):
    broken = make_data(tmp_path / "data")
    truth = json.loads((broken / "test.json").read_text())
    truth["annotations"] = [a for a in truth["annotations"] if a["image_id"] != 5]
    (broken / "test.json").write_text(json.dumps(truth))
    common = ("--checkpoint", checkpoint, "--data", broken, "--out", tmp_path / "out")
    with pytest.raises(scm_fast.InputError, match=r"test/square/005\.jpg: this image has no box"):
        in_process(*common)
    shown = in_process(*common, "--skip-bad-images")
    assert "left out 1 image" in shown
    assert "005.jpg" in shown


@pytest.mark.parametrize("given", [True, False], ids=["given", "in the folder"])
def test_boxes_of_the_test_images_alone(in_process, checkpoint, tmp_path, caplog, given):
    """The images choose the threshold, and the boxes measure."""
    data = make_data(tmp_path / "data")
    for split in ("train", "val"):
        (data / f"{split}.json").unlink()
    boxes = (data / "test.json").rename((tmp_path if given else data) / "boxes.json")
    common = ("--checkpoint", checkpoint, "--data", data, "--out", tmp_path / "out")
    in_process(*common, *(("--boxes", boxes) if given else ()))
    metrics, rows = read(tmp_path / "out")
    assert metrics["protocol"] == "unboxed"
    assert metrics["images_with_boxes"] == len(rows) == 17
    assert "gt_known" in metrics["metrics"]
    assert "unboxed instead of heldout: there are no boxes in split val" in caplog.text
    assert f"for {'0 of ' * given}the 7 images of split val" in caplog.text


def with_class_names(checkpoint, folder, names):
    """A checkpoint whose classes have other names or another order."""
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"class_names": names}))
    return folder


def test_classes_in_another_order_are_matched_by_name(in_process, checkpoint, data, tmp_path, caplog):
    names = ["ring", "square", "disc"]
    turned = with_class_names(checkpoint, tmp_path / "turned", names)
    predicted = {}
    for name, model in (("plain", checkpoint), ("turned", turned)):
        in_process("--checkpoint", model, "--data", data, "--out", tmp_path / name)
        metrics, rows = read(tmp_path / name)
        predicted[name] = [row["predicted_name"] for row in rows]
        assert [row["label_name"] for row in rows] == [row["image"].split("/")[1] for row in rows]
        right = [row["label_name"] == row["predicted_name"] for row in rows]
        assert metrics["metrics"]["top1_cls"]["value"] == pytest.approx(100 * sum(right) / len(right))
    assert predicted["turned"] == [names[CLASSES.index(name)] for name in predicted["plain"]]
    assert "are in another order than the checkpoint's, and are matched by name" in caplog.text


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["disc", "ring", "cube"], "other classes: only the checkpoint has cube; only the data has square"),
        (["disc", "ring"], "2 classes, .* has 3: only the data has square"),
    ],
)
def test_other_classes_are_refused(in_process, checkpoint, data, tmp_path, names, message):
    if len(names) == 2:
        model = scm_fast.create_model("deit_tiny_patch16_224", 2, image_size=64)
        model.config.class_names = names
        other = scm_fast.save_model(model, tmp_path / "other")
    else:
        other = with_class_names(checkpoint, tmp_path / "other", names)
    with pytest.raises(scm_fast.InputError, match=message):
        in_process("--checkpoint", other, "--data", data, "--out", tmp_path / "out")


def test_numbers_are_no_names(in_process, checkpoint, data, tmp_path):
    """Classes without names, as wsolevaluation's, are matched by their places."""
    numbered = with_class_names(checkpoint, tmp_path / "numbered", ["0", "1", "2"])
    in_process("--checkpoint", numbered, "--data", data, "--out", tmp_path / "out")


def test_an_empty_class_folder_and_a_missing_box_file_are_named(in_process, checkpoint, tmp_path):
    broken = make_data(tmp_path / "data")
    (broken / "test" / "ring" / "empty").mkdir()
    for image in (broken / "test" / "square").iterdir():
        image.unlink()
    common = ("--checkpoint", checkpoint, "--out", tmp_path / "out")
    with pytest.raises(scm_fast.InputError, match=r"test/square: this class folder has no image"):
        in_process(*common, "--data", broken, "--protocol", "maxbox")
    with pytest.raises(scm_fast.InputError, match=r"none\.json: no such file"):
        in_process(*common, "--data", broken, "--boxes", broken / "none.json")


def test_without_any_boxes_there_is_classification_and_boxes_at_a_fixed_threshold(
    in_process, checkpoint, tmp_path
):
    bare = make_data(tmp_path / "data", boxes=False)
    common = ("--checkpoint", checkpoint, "--data", bare, "--out", tmp_path / "out")
    shown = in_process(*common, "--protocol", "fixed", "--threshold", "0.123", "--step", "0.1", "--report")
    assert "17 images have no box and count for classification only" in shown
    metrics, rows = read(tmp_path / "out")
    assert set(metrics["metrics"]) == {"top1_cls"}
    assert all(row["x1"] and not row["iou"] for row in rows)
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_heldout_without_boxes_to_choose_by_is_unboxed_and_says_so(in_process, checkpoint, tmp_path, caplog):
    """The same at the end of training: see test_training."""
    for missing in (("val.json",), ("test.json",), ("val.json", "test.json")):
        data = make_data(tmp_path / "-".join(missing))
        for name in missing:
            (data / name).unlink()
        out = data / "out"
        caplog.clear()
        shown = in_process("--checkpoint", checkpoint, "--data", data, "--out", out)
        warned = "unboxed instead of heldout: there are no boxes in split val" in caplog.text
        assert warned == (missing == ("val.json",)), "where it changes figures"
        metrics, rows = read(out)
        assert metrics["protocol"] == ("unboxed" if "val.json" in missing else "heldout")
        assert f"protocol {metrics['protocol']}; threshold {metrics['threshold_choice']}" in shown
        if "val.json" in missing:
            assert (metrics["threshold"], metrics["threshold_rule"]) == (0.3, "between")
            assert "7 images are too few to choose by" in metrics["threshold_choice"]
        assert ("gt_known" in metrics["metrics"]) == ("test.json" not in missing)
        assert metrics["images"] == len(rows) == 17
        assert all(row["x1"] for row in rows), "every image has a box, measured or not"


def test_a_threshold_chosen_on_another_split_is_not_said_to_be_the_test_splits(
    in_process, data, checkpoint, tmp_path
):
    shown = in_process(
        *("--checkpoint", checkpoint, "--data", data, "--split", "val"),
        *("--protocol", "maxbox", "--out", tmp_path),
    )
    assert "the best GT-Known on the evaluated images themselves" in shown
    assert "test split" not in shown


def test_top5_of_three_classes_is_not_printed(alone):
    run, out = alone
    assert "Top-5" not in run.stdout
    assert "Top-5 class" not in (out / "report.html").read_text()
    assert not [name for name in read(out)[0]["metrics"] if name.startswith("top5")]


def test_metrics_are_there_only_when_everything_else_is(in_process, data, checkpoint, tmp_path, monkeypatch):
    common = (
        "--checkpoint",
        checkpoint,
        "--data",
        data,
        "--protocol",
        "maxbox",
        "--report",
        "--out",
        tmp_path,
    )
    in_process(*common)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("metrics.json", "predictions.coco.json", "predictions.csv", "report.html")
    ]
    for name in ("results.write_coco", "report.write_report", "results.metrics_content"):

        def fail(*arguments):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(f"scm_fast.evaluation.{name}", fail)
            with pytest.raises(OSError, match="No space left"):
                in_process(*common)
        assert not (tmp_path / "metrics.json").exists(), name
    in_process(*common)
    assert read(tmp_path)[0]["images"] == 17


def test_every_image_goes_through_the_model_once(in_process, data, checkpoint, tmp_path, monkeypatch):
    """Also with a report, whose gallery shows maps."""
    seen = []
    forward = LocalizationModel.forward
    monkeypatch.setattr(
        LocalizationModel, "forward", lambda self, images: seen.append(len(images)) or forward(self, images)
    )
    in_process("--checkpoint", checkpoint, "--data", data, "--report", "--out", tmp_path)
    assert sum(seen) == 7 + 17


def test_an_image_passes_few_rooms_of_the_project(data, checkpoint, tmp_path, monkeypatch):
    """A reader of the code visits so many rooms from an open data set to the written figures.

    A room is a file. Thresholds and formats are packages of a few short files with an index: one room each.
    """
    # Boxes are found in another process, or in a thread where there is no fork; only a thread can be watched.
    monkeypatch.setattr("scm_fast.evaluation.extraction.sys", types.SimpleNamespace(platform="darwin"))
    package = str(Path(scm_fast.__file__).parent)
    predictor = Predictor(scm_fast.load_model(checkpoint), torch.device("cpu"))
    source = DataSource(data)
    source.split("val"), source.split("test")
    entered = set()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            file = frame.f_code.co_filename.removeprefix(package)
            entered.add(re.sub(r"^/(threshold|formats)/.*", r"/\1/", file))

    before = sys.getprofile(), threading.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        done = run_evaluation(predictor, source, EvaluationSettings(workers=0))
        write_results(tmp_path, done)
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])
    assert "/evaluation/sweep.py" in entered
    assert "/models/backbones.py" in entered
    assert len(entered) <= MOST_ROOMS, "\n".join(sorted(entered))


def test_gallery_maps_are_the_same_from_several_processes(alone, data, checkpoint, tmp_path):
    common = ("--checkpoint", checkpoint, "--data", data, "--report", "--out", tmp_path)
    run = evaluate(*common, processes=2)
    assert run.returncode == 0, run.stderr
    strips = [
        re.findall('data:image/jpeg[^"]+', (o / "report.html").read_text()) for o in (alone[1], tmp_path)
    ]
    assert len(strips[0]) == 17 * 5  # panels of an image
    assert strips[0] == strips[1]


@pytest.mark.parametrize("protocol", ["heldout", "published"])
def test_localizer_finds_the_boxes_of_the_evaluation(in_process, data, checkpoint, tmp_path, protocol):
    """The threshold travels with the interpolation it was chosen for."""
    in_process("--checkpoint", checkpoint, "--data", data, "--protocol", protocol, "--out", tmp_path)
    metrics, rows = read(tmp_path)
    model = scm_fast.load_model(checkpoint)
    model.config.threshold = Threshold(
        metrics["threshold"], metrics["threshold_rule"], metrics["interpolation"]
    )
    localizer = scm_fast.Localizer(scm_fast.load_model(scm_fast.save_model(model, tmp_path / "model")))
    found = localizer.predict([data / row["image"] for row in rows])
    for row, prediction in zip(rows, found, strict=True):
        expected = [float(row[corner]) for corner in ("x0", "y0", "x1", "y1")]
        assert prediction.box == pytest.approx(expected, abs=0.01)


def test_a_choice_by_rule_is_the_best_of_it_on_the_held_out_images(
    in_process, alone, data, checkpoint, tmp_path
):
    common = ("--checkpoint", checkpoint, "--data", data)
    in_process(*common, "--split", "val", "--protocol", "maxbox", "--out", tmp_path / "val")
    validation = read(tmp_path / "val")[0]
    curves = {"global": {"value": validation["curves"]["threshold"], **validation["curves"]}}
    curves |= validation["rule_curves"]
    best = {}
    for rule, curve in curves.items():
        equals = [i for i, v in enumerate(curve["gt_known"]) if v == max(curve["gt_known"])]
        best[rule] = max(curve["gt_known"]), curve["value"][equals[len(equals) // 2]]
    for rule in curves:
        shown = in_process(*common, "--rule", rule, "--out", tmp_path / rule)
        metrics = read(tmp_path / rule)[0]
        assert (metrics["threshold_rule"], metrics["threshold"]) == (rule, pytest.approx(best[rule][1]))
        assert f"threshold {rule}:" in shown
        assert "without boxes to choose by (protocol unboxed): GT-Known" in shown
    whole = read(alone[1])[0]
    winner = max(("between", "geometric", "deviation", "global"), key=lambda rule: best[rule][0])
    assert (whole["threshold_rule"], whole["threshold"]) == (winner, pytest.approx(best[winner][1]))
    # The price of having no boxes stands beside it, and is what the protocol gives by itself.
    in_process(*common, "--protocol", "unboxed", "--out", tmp_path / "unboxed")
    alone_unboxed = read(tmp_path / "unboxed")[0]
    for name in ("protocol", "threshold", "threshold_rule", "threshold_choice", "metrics"):
        assert whole["unboxed"][name] == alone_unboxed[name], name
    assert alone_unboxed["unboxed"] is None


def test_unboxed_reads_no_box_of_the_split_that_chooses(in_process, checkpoint, tmp_path):
    found = []
    for boxes in ("right", "wrong"):
        data = make_data(tmp_path / boxes, splits=(("train", 6), ("val", 16), ("test", 17)))
        if boxes == "wrong":
            content = json.loads((data / "val.json").read_text())
            for annotation in content["annotations"]:
                annotation["bbox"] = [0, 0, 9, 9]
            (data / "val.json").write_text(json.dumps(content))
        in_process(
            *("--checkpoint", checkpoint, "--data", data, "--protocol", "unboxed", "--out", data / "out")
        )
        found.append(read(data / "out")[0])
    assert found[0]["metrics"] == found[1]["metrics"]
    assert found[0]["threshold_rule"] == "between"
    assert "by the tokens of 16 images" in found[0]["threshold_choice"]


def test_where_no_split_is_held_out_the_evaluated_images_choose(in_process, checkpoint, tmp_path, caplog):
    data = make_data(tmp_path / "data")
    metadata = tmp_path / "metadata"
    (metadata / "test").mkdir(parents=True)
    content = json.loads((data / "test.json").read_text())
    tables = {
        "image_ids": "{0}",
        "class_labels": "{0},{1}",
        "image_sizes": "{0},{2},{3}",
        "localization": "{0},{4}",
    }
    for name, line in tables.items():
        rows = []
        for image, annotation in zip(content["images"], content["annotations"], strict=True):
            x, y, w, h = annotation["bbox"]
            values = image["file_name"], annotation["category_id"], image["width"], image["height"]
            rows.append(line.format(*values, f"{x},{y},{x + w},{y + h}"))
        (metadata / "test" / f"{name}.txt").write_text("\n".join(rows) + "\n")
    in_process(
        *("--checkpoint", checkpoint, "--data", metadata, "--images", data, "--layout", "wsol"),
        *("--out", tmp_path / "out"),
    )
    metrics, _ = read(tmp_path / "out")
    assert metrics["protocol"] == "unboxed"
    assert "by the tokens of 17 images" in metrics["threshold_choice"]
    assert "unboxed instead of heldout" in caplog.text


def test_save_threshold(in_process, data, checkpoint, tmp_path, caplog):
    """Localizer then uses what heldout chose; nothing else of the model changes."""
    model = scm_fast.save_model(scm_fast.load_model(checkpoint), tmp_path / "model")
    before = json.loads((model / "config.json").read_text())
    in_process("--checkpoint", model, "--data", data, "--save-threshold", "--out", tmp_path / "out")
    metrics, rows = read(tmp_path / "out")
    assert "a loose choice: only 7 held-out images have boxes" in caplog.text
    after = json.loads((model / "config.json").read_text())
    assert after.pop("threshold") == {
        **{"value": metrics["threshold"], "rule": metrics["threshold_rule"]},
        **{"interpolation": "cubic"},
    }
    assert before.pop("threshold") is None
    assert after == before
    assert sorted(path.name for path in model.iterdir()) == ["config.json", "model.safetensors"]
    (found,) = scm_fast.Localizer.from_checkpoint(model).predict(data / rows[0]["image"])
    assert found.box == pytest.approx([float(rows[0][c]) for c in ("x0", "y0", "x1", "y1")], abs=0.01)
    (tmp_path / "published.pth").write_bytes(b"")
    with pytest.raises(scm_fast.InputError, match=r"published\.pth: a threshold can only be saved beside"):
        in_process("--checkpoint", tmp_path / "published.pth", "--data", data, "--save-threshold")


def test_images_of_another_size(in_process, data, checkpoint, tmp_path):
    def figures(*options, model=checkpoint):
        in_process("--checkpoint", model, "--data", data, "--out", tmp_path / "out", *options)
        metrics, _ = read(tmp_path / "out")
        return metrics["image_size"], metrics["curves"]

    resized = scm_fast.save_model(scm_fast.load_model(checkpoint, 96), tmp_path / "model")
    assert figures("--image-size", "96") == figures(model=resized)
    assert figures()[0] == [64, 64]
    assert figures("--image-size", "96")[0] == [96, 96]


@pytest.mark.parametrize("method", ["scm", "tscam", "cls"])
def test_mirror_and_attention_alone_serve_every_method(in_process, data, tmp_path, monkeypatch, method):
    torch.manual_seed(0)
    model = scm_fast.create_model(
        "deit_tiny_patch16_224", 3, method, image_size=32, backbone_options={"depth": 1}
    )
    folder = scm_fast.save_model(model, tmp_path / "model")
    seen = []
    forward = LocalizationModel.forward
    monkeypatch.setattr(
        LocalizationModel, "forward", lambda self, images: seen.append(len(images)) or forward(self, images)
    )
    in_process(
        *("--checkpoint", folder, "--data", data, "--strategy", "F0", "--mirror", "--out", tmp_path / "out")
    )
    metrics, rows = read(tmp_path / "out")
    assert sum(seen) == 2 * (7 + 17)
    assert (metrics["mirror"], metrics["strategy"]) == (True, "F0")
    assert all(float(row["x1"]) > float(row["x0"]) for row in rows), "also of a 2 x 2 grid"


@pytest.mark.parametrize("weight", [0.0, float("nan")], ids=["constant", "NaN"])
def test_maps_that_say_nothing_are_counted_in_a_warning(in_process, tmp_path, caplog, weight):
    """Also where the split that chooses has one image of each class."""
    data = make_data(tmp_path / "data", splits=(("train", 6), ("val", 3), ("test", 5)))
    model = scm_fast.create_model("deit_tiny_patch16_224", 3, image_size=32, backbone_options={"depth": 1})
    with torch.no_grad():
        model.head.weight.fill_(weight)
    folder = scm_fast.save_model(model, tmp_path / "model")
    for protocol in ("heldout", "unboxed", "maxbox", "published"):
        caplog.clear()
        in_process(
            *("--checkpoint", folder, "--data", data, "--protocol", protocol, "--report"),
            *("--out", tmp_path / protocol),
        )
        metrics, rows = read(tmp_path / protocol)
        assert metrics["metrics"]["gt_known"]["value"] == 0
        assert len(rows) == 5
        assert "5 images of split test have a map that is constant or not of finite numbers" in caplog.text


def test_masks_give_pxap(in_process, checkpoint, tmp_path):
    """OpenImages' layout: PxAP equals the literal one over the model's own maps."""
    rng = np.random.default_rng(0)
    root = tmp_path / "data"
    names = [f"{number:02d}" for number in range(5)]
    tables = {"image_ids": [], "class_labels": [], "localization": [], "image_sizes": []}
    (root / "test").mkdir(parents=True)
    for number, name in enumerate(names):
        pixels = rng.integers(0, 255, (80, 120, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{name}.png")
        for kind in ("mask", "ignore"):
            mask = np.zeros((80, 120), np.uint8)
            y, x = rng.integers(0, 40, 2)
            mask[y : y + 40, x : x + 50] = 255
            Image.fromarray(mask).save(root / f"{name}_{kind}.png")
        tables["image_ids"].append(f"{name}.png")
        tables["class_labels"].append(f"{name}.png,{number % 3}")
        tables["localization"].append(f"{name}.png,{name}_mask.png,{name}_ignore.png")
        tables["image_sizes"].append(f"{name}.png,120,80")
    for table, lines in tables.items():
        (root / "test" / f"{table}.txt").write_text("\n".join(lines) + "\n")
    in_process(
        *("--checkpoint", checkpoint, "--data", root, "--layout", "wsol", "--protocol", "maxbox"),
        *("--step", "0.01", "--batch-size", "1", "--out", tmp_path / "out"),
    )
    value = read(tmp_path / "out")[0]["metrics"]["px_ap"]["value"]

    model = scm_fast.load_model(checkpoint)
    preprocessing = Predictor(model, torch.device("cpu")).preprocessing
    scores, truth = [], []
    for number, name in enumerate(names):
        batch = preprocessing.normalize(preprocessing.prepare(Image.open(root / f"{name}.png"))[None])
        with torch.no_grad():
            activation = model(batch).activation_map(torch.tensor([number % 3]))[0]
        resized, _ = literal_uint8(activation.numpy())
        judged = read_masks([str(root / f"{name}_mask.png")], str(root / f"{name}_ignore.png"))
        scores.append(resized[judged != 255])
        truth.append(judged[judged != 255])
    scores, truth = np.concatenate(scores), np.concatenate(truth)
    expected, recall = 0, 0
    for threshold in [*np.arange(0, 1, 0.01), 1.0][::-1]:
        above = scores >= threshold
        if above.any():
            found = truth[above].sum() / truth.sum()
            expected += truth[above].mean() * (found - recall)
            recall = found
    assert recall == 1
    assert value == pytest.approx(100 * expected)


def test_json_is_what_the_file_has(in_process, data, checkpoint, tmp_path):
    shown = in_process(
        *("--checkpoint", checkpoint, "--data", data, "--protocol", "maxbox"), "--json", "--out", tmp_path
    )
    assert json.loads(shown) == json.loads((tmp_path / "metrics.json").read_text())


def test_protocols_and_strategies_change_the_result_and_say_so(in_process, alone, data, checkpoint, tmp_path):
    results = {}
    for name, options in {
        "maxbox": ("--protocol", "maxbox"),
        "published": ("--protocol", "published"),
        "fixed": ("--protocol", "fixed", "--threshold", "0.9"),
        "rule": ("--protocol", "fixed", "--threshold", "deviation:-0.5"),
        "blocks": ("--protocol", "maxbox", "--strategy", "F4*S4"),
    }.items():
        in_process("--checkpoint", checkpoint, "--data", data, "--out", tmp_path / name, *options)
        results[name] = read(tmp_path / name)[0]
    best = results["maxbox"]["metrics"]
    assert best["gt_known"]["value"] == best["max_box_acc"]["value"]
    assert results["fixed"]["threshold"] == 0.9
    assert (results["rule"]["threshold"], results["rule"]["threshold_rule"]) == (-0.5, "deviation")
    curve = results["maxbox"]["rule_curves"]["deviation"]
    assert results["rule"]["metrics"]["gt_known"] == {
        **{"value": pytest.approx(curve["gt_known"][curve["value"].index(-0.5)], abs=1e-3)},
        **{"threshold": -0.5, "rule": "deviation"},
    }
    assert len(results["published"]["curves"]["threshold"]) == 100
    assert "max_box_acc" not in results["published"]["metrics"], "its maps are resized otherwise"
    assert results["blocks"]["strategy"] == "F4*S4"
    assert results["blocks"]["curves"] != results["maxbox"]["curves"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threshold", "0.3"], "a threshold and protocol fixed go together"),
        (["--protocol", "fixed"], "a threshold and protocol fixed go together"),
        (["--protocol", "fixed", "--threshold", "1"], r"threshold must be in \[0, 1\), got 1.0"),
        (
            ["--protocol", "fixed", "--threshold", "x:1"],
            "rule must be one of global, deviation, geometric, between, got 'x'",
        ),
        (["--protocol", "fixed", "--threshold", "between"], "such as between:0.3, got 'between'"),
        (["--protocol", "fixed", "--threshold", "between:nan"], "a finite number, got nan"),
        (["--save-threshold", "--strategy", "F0"], "is used with its own map, not with --strategy"),
        (["--save-threshold", "--image-size", "96"], "with images of its own size, not of --image-size"),
        (["--image-size", "90"], "image_size is 90 x 90: both must be multiples of 16"),
        (["--protocol", "maxbox", "--strategy", "F5*S0"], "asks for block 5, but the checkpoint has 4"),
        (["--protocol", "maxbox", "--strategy", "G0"], "expected such as F0"),
        (["--protocol", "maxbox", "--split", "dev"], "no split 'dev', only train, val, test"),
        (["--protocol", "maxbox", "--data", "synthetic"], "the checkpoint has 3 classes, synthetic has 12"),
        (["--checkpoint", "nowhere"], "nowhere: no such checkpoint"),
        (["--protocol", "maxbox", "--step", "0"], "step"),
    ],
)
def test_wrong_arguments_are_named(in_process, data, checkpoint, tmp_path, options, message):
    with pytest.raises(scm_fast.InputError, match=message):
        in_process("--checkpoint", checkpoint, "--data", data, "--out", tmp_path, *options)


def test_real_birds(in_process, tmp_path):
    """DeiT-Tiny's attention alone, without any training on boxes or birds, beats the whole image on CUB."""
    if "SCM_FAST_DATA" not in os.environ:
        pytest.skip("SCM_FAST_DATA is not set: the folder with CUB_200_2011 and weights")
    source = Path(os.environ["SCM_FAST_DATA"])
    subset = tmp_path / "CUB_200_2011"
    subset.mkdir()
    # The first 40 test images; the tables are cut, the images linked.
    tests = {
        line.split()[0]
        for line in (source / "CUB_200_2011/train_test_split.txt").read_text().splitlines()
        if line.split()[1] == "0"
    }
    kept = set(sorted(tests, key=int)[:40])
    for name in ("images", "image_class_labels", "train_test_split", "bounding_boxes"):
        lines = (source / f"CUB_200_2011/{name}.txt").read_text().splitlines()
        lines = [line for line in lines if line.split()[0] in kept or line.split()[0] not in tests]
        (subset / f"{name}.txt").write_text("\n".join(lines) + "\n")
    (subset / "classes.txt").write_text((source / "CUB_200_2011/classes.txt").read_text())
    (subset / "images").symlink_to(source / "CUB_200_2011/images")
    torch.manual_seed(0)
    model = scm_fast.create_model(
        "deit_tiny_patch16_224",
        num_classes=200,
        method="cls",
        pretrained=str(source / "weights/deit_tiny_patch16_224.safetensors"),
    )
    scm_fast.save_model(model, tmp_path / "checkpoint")
    in_process(
        *("--checkpoint", tmp_path / "checkpoint", "--data", subset, "--protocol", "maxbox"),
        *("--report", "--out", tmp_path / "out"),
    )
    metrics, rows = read(tmp_path / "out")
    assert len(rows) == 40
    assert metrics["metrics"]["gt_known"]["value"] > metrics["baselines"]["full image"]["gt_known"] + 10
