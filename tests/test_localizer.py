"""Localizer, `scm-fast predict` and `scm-fast export`, on real files."""

import csv
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import yaml
from colour_model import colour_model
from PIL import Image
from test_boxes import literal_boxes, literal_uint8

from scm_fast import InputError, Localizer, create_model, load_model, save_model
from scm_fast.cli import main
from scm_fast.evaluation.boxes import ScoredBox, box_iou
from scm_fast.localizer import ClassScore, Failure, Prediction
from scm_fast.models import LocalizationModel
from scm_fast.models.export import export_model
from scm_fast.overlay import draw_overlay
from scm_fast.threshold import Threshold, choose_unboxed, token_separation

DATA = os.environ.get("SCM_FAST_DATA")
SMALL = {"depth": 2, "embed_dim": 48, "num_heads": 3}
NAMES = ["red", "green", "blue"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_model(colour_model(NAMES), tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Black pictures with one coloured rectangle: file -> (class, box in pixels)."""
    folder = tmp_path_factory.mktemp("pictures")
    truth = {}
    for index, (size, box) in enumerate([
        ((448, 448), (64, 96, 256, 288)), ((640, 320), (320, 80, 480, 240)), ((100, 300), (20, 100, 80, 200)),
    ]):  # fmt: skip
        picture = Image.new("RGB", size)
        picture.paste(tuple(255 * (channel == index) for channel in range(3)), box)
        path = folder / "sub" / f"{NAMES[index]}.png"
        path.parent.mkdir(exist_ok=True)
        picture.save(path)
        truth[path] = (index, box)
    (folder / "notes.txt").write_text("not an image")
    return folder, truth


def check(prediction, expected):
    index, box = expected
    assert prediction.classes[0].index == index
    assert prediction.classes[0].name == NAMES[index]
    assert box_iou([prediction.box], [box])[0, 0] > 0.6
    assert prediction.map.shape == (224, 224)
    assert (prediction.map.min(), prediction.map.max()) == (0, 1)
    scores = [c.score for c in prediction.classes]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1)


def test_paths_pictures_arrays_and_folders_give_the_same_boxes(checkpoint, pictures):
    folder, truth = pictures
    localizer = Localizer.from_checkpoint(checkpoint, batch_size=2, threshold=0.5)
    by_path = localizer.predict(list(truth))
    for prediction, (path, expected) in zip(by_path, truth.items(), strict=True):
        check(prediction, expected)
        assert prediction.name == str(path)
        with Image.open(path) as image:
            assert prediction.size == image.size
    by_folder = localizer.predict(folder)
    assert [p.name for p in by_folder] == sorted(str(p) for p in truth)
    images = [Image.open(path) for path in truth]
    for kind in (
        images,
        [np.asarray(image) for image in images],
        [image.convert("RGBA") for image in images],
    ):
        for prediction, reference in zip(localizer.predict(kind), by_path, strict=True):
            assert prediction.box == reference.box
            np.testing.assert_array_equal(prediction.map, reference.map)
    (single,) = localizer.predict(next(iter(truth)))
    assert single.box == by_path[0].box
    assert localizer.predict(np.asarray(images[1]))[0].name == "image 0"


def test_batches_do_not_change_results(checkpoint, pictures):
    _, truth = pictures
    paths = list(truth) * 3
    one = Localizer.from_checkpoint(checkpoint, batch_size=1).predict(paths)
    many = Localizer.from_checkpoint(checkpoint, batch_size=4).predict(paths)
    assert [p.box for p in one] == [p.box for p in many]


def test_the_threshold_is_the_argument_then_the_checkpoints(checkpoint, tmp_path):
    model = load_model(checkpoint)
    assert Localizer(model).threshold == Threshold(0.3, "between")
    assert Localizer(model, threshold="deviation:0.4").threshold == Threshold(0.4, "deviation")
    model.config.threshold = Threshold(0.3, interpolation="linear")
    again = load_model(save_model(model, tmp_path))
    assert Localizer(again).threshold == Threshold(0.3, interpolation="linear")
    assert Localizer(again, threshold=0).threshold == Threshold(0, interpolation="linear")
    assert Localizer(again, threshold=Threshold(0)).threshold == Threshold(0)
    with pytest.raises(InputError, match=r"threshold must be in \[0, 1\), got 1.5"):
        Localizer(again, threshold=1.5)


@pytest.mark.parametrize("interpolation", ["cubic", "linear"])
def test_maps_are_resized_as_the_threshold_wants_them(pictures, interpolation):
    """Compare with the rules of the protocol that chose it, step by step."""
    _, truth = pictures
    torch.manual_seed(0)
    model = create_model("deit_tiny_patch16_224", 3, image_size=64, backbone_options=SMALL).eval()
    model.config.threshold = Threshold(0.6, interpolation=interpolation)
    flag = {"cubic": cv2.INTER_CUBIC, "linear": cv2.INTER_LINEAR}[interpolation]
    localizer = Localizer(model)
    for prediction, path in zip(localizer.predict(list(truth)), truth, strict=True):
        pixels = localizer.preprocessing.prepare(Image.open(path).convert("RGB"))[None]
        with torch.no_grad():
            activation = model(localizer.preprocessing.normalize(pixels)).activation_map()[0].numpy()
        scores, levels = literal_uint8(activation, interpolation=flag)
        np.testing.assert_allclose(prediction.map, scores, atol=1e-5)
        (box,) = literal_boxes(levels, 0.6, multiple=False)
        scale = np.tile(np.array(prediction.size) / 224, 2)
        edges = [224 if corner > 1 and side == 223 else side for corner, side in enumerate(box)]
        assert prediction.box == pytest.approx(tuple(edges * scale))


def test_an_unreadable_image_is_named_and_the_rest_go_on(checkpoint, pictures, tmp_path, caplog):
    _, truth = pictures
    bad = tmp_path / "broken.jpg"
    bad.write_bytes(b"\xff\xd8\xff nothing")
    good = list(truth)
    localizer = Localizer.from_checkpoint(checkpoint, batch_size=2, threshold=0.5)
    with caplog.at_level(logging.WARNING, "scm_fast"):
        images = [good[0], bad, tmp_path / "missing.png", good[1], Image.new("F", (4, 4))]
        predictions = localizer.predict(images)
    assert [p.name for p in predictions] == [*map(str, images[:4]), "image 4"]
    assert [isinstance(p, Failure) for p in predictions] == [False, True, True, False, True]
    check(predictions[3], truth[good[1]])
    assert str(bad) in caplog.text
    assert predictions[2].error == f"{tmp_path / 'missing.png'}: no such image file"
    assert predictions[2].error in caplog.text
    assert "image 4: a floating-point image has no defined white" in caplog.text
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty: no image files in this folder"):
        localizer.predict(tmp_path / "empty")
    with pytest.raises(InputError, match="photoz: no such image file or folder"):
        localizer.predict(tmp_path / "photoz")


def test_arrays_and_tensors_in_the_usual_conventions(checkpoint, pictures):
    """(H, W, 3) arrays and (3, H, W) tensors, of bytes or in [0, 1], one or a batch of them."""
    _, truth = pictures
    localizer = Localizer.from_checkpoint(checkpoint, threshold=0.5)
    path = next(iter(truth))
    (reference,) = localizer.predict(path)
    pixels = np.array(Image.open(path).convert("RGB"))
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    cases = [pixels, (pixels / 255).astype(np.float32), pixels / 255, tensor, tensor / 255]
    cases += [(tensor / 255).double().requires_grad_(), tensor[None], pixels[None] / 255]
    for case in cases:
        (prediction,) = localizer.predict(case)
        assert prediction.box == reference.box
        np.testing.assert_array_equal(prediction.map, reference.map)
    both = torch.stack([tensor, tensor.flip(-1)]) / 255
    first, second = localizer.predict(both)
    assert first.box == reference.box
    assert second.box == localizer.predict(pixels[:, ::-1])[0].box != first.box
    grey = np.array(Image.open(path).convert("L"))
    boxes = {localizer.predict(g)[0].box for g in (grey, grey / 255, torch.from_numpy(grey)[None])}
    assert len(boxes) == 1


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4, 2), np.uint8), r"image 0: an array must be \(H, W, 3\), got uint8 \(4, 4, 2\)"),
        (np.full((4, 4, 3), 200.0), "got float64 .* from 200 to 200"),
        (np.full((4, 4, 3), np.nan), "from nan to nan"),
        (torch.zeros(9, 9, 3), r"a tensor must be \(3, H, W\), got float32 \(9, 9, 3\)"),
        (torch.randn(3, 9, 9), r"floating-point in \[0, 1\]; got float32"),
        (torch.zeros(3, 4, 4, dtype=torch.int64), r"got int64 \(3, 4, 4\)"),
        ([np.zeros((4, 4, 3), np.uint8), 7], "image 1: expected a path, .* got int"),
        (torch.zeros(2, 2, 3, 4, 4), "image 0: a tensor must be"),
    ],
    ids=["two channels", "to 255", "NaN", "channels last", "normalised", "int64", "a number", "five axes"],
)
def test_other_arrays_are_refused(checkpoint, image, message):
    with pytest.raises(InputError, match=message):
        Localizer.from_checkpoint(checkpoint).predict(image)


def run_predict(*arguments):
    return main(["predict", *(str(a) for a in arguments)])


def test_predict_writes_json_and_overlays(checkpoint, pictures, tmp_path, capsys):
    folder, truth = pictures
    arguments = ["--checkpoint", checkpoint, "--out", tmp_path, "--threshold", 0.5, "--overlay"]
    assert run_predict(folder, *arguments) == 0
    shown = capsys.readouterr().out
    assert "3 images in" in shown
    assert "threshold global:0.5 (given)" in shown
    entries = {Path(e["image"]): e for e in json.loads((tmp_path / "predictions.json").read_text())}
    assert entries.keys() == truth.keys()
    for path, (index, box) in truth.items():
        assert entries[path]["classes"][0]["name"] == NAMES[index]
        assert box_iou([entries[path]["box"]], [box])[0, 0] > 0.6
        with (
            Image.open(path) as original,
            Image.open(tmp_path / "overlays/sub" / f"{path.stem}.jpg") as overlay,
        ):
            assert overlay.size == original.size
            assert np.abs(np.asarray(overlay, int) - np.asarray(original.convert("RGB"), int)).mean() > 10


def test_predict_writes_coco_csv_and_yolo_of_the_same_boxes(checkpoint, pictures, tmp_path):
    folder, truth = pictures
    command = [folder, "--checkpoint", checkpoint, "--out", tmp_path, "--format", "json,coco,csv,yolo"]
    assert run_predict(*command) == 0
    boxes = {e["image"]: e["box"] for e in json.loads((tmp_path / "predictions.json").read_text())}
    coco = json.loads((tmp_path / "predictions.coco.json").read_text())
    assert [c["name"] for c in coco["categories"]] == NAMES
    files = {image["id"]: str(folder / image["file_name"]) for image in coco["images"]}
    rows = {row["image"]: row for row in csv.DictReader((tmp_path / "predictions.csv").open())}
    assert len(coco["annotations"]) == len(rows) == len(boxes) == 3
    assert yaml.safe_load((tmp_path / "yolo/data.yaml").read_text())["names"] == dict(enumerate(NAMES))
    for annotation in coco["annotations"]:
        name = files[annotation["image_id"]]
        x0, y0, x1, y1 = boxes[name]
        assert annotation["bbox"] == pytest.approx([x0, y0, x1 - x0, y1 - y0], abs=0.02)
        assert [float(rows[name][key]) for key in ("x0", "y0", "x1", "y1")] == pytest.approx([x0, y0, x1, y1])
        label, *values = (tmp_path / "yolo/labels" / f"sub_{Path(name).stem}.txt").read_text().split()
        assert int(label) == annotation["category_id"] - 1 == truth[Path(name)][0]
        with Image.open(name) as image:
            width, height = image.size
        xc, yc, w, h = (float(v) for v in values)
        corners = (xc - w / 2) * width, (yc - h / 2) * height, (xc + w / 2) * width, (yc + h / 2) * height
        assert corners == pytest.approx((x0, y0, x1, y1), abs=0.02)


@pytest.fixture(scope="module")
def two_objects(tmp_path_factory):
    """A green square and a smaller one, far from each other: the picture's file and its boxes."""
    boxes = (32, 32, 192, 192), (304, 304, 400, 400)
    picture = Image.new("RGB", (448, 448))
    for box in boxes:
        picture.paste((0, 255, 0), box)
    path = tmp_path_factory.mktemp("two") / "two.png"
    picture.save(path)
    return path, boxes


def test_several_boxes_of_an_image(checkpoint, pictures, two_objects):
    path, truth = two_objects
    (one,) = Localizer.from_checkpoint(checkpoint, threshold=0.5).predict(path)
    localizer = Localizer.from_checkpoint(checkpoint, threshold=0.5, max_boxes=3)
    (several,) = localizer.predict(path)
    assert several.boxes[:1] == one.boxes
    assert several.box == one.box == one.boxes[0].box
    assert len(several.boxes) == 2
    for (box, _), expected in zip(several.boxes, truth, strict=True):
        assert box_iou([box], [expected])[0, 0] > 0.6
    kept = np.where(several.map > 0.5, several.map, 0)
    for (_, score), part in zip(several.boxes, (kept[:120, :120], kept[120:, 120:]), strict=True):
        assert score == pytest.approx(part.sum() / several.map.sum(), rel=0.02)
    folder, _ = pictures
    assert [len(prediction.boxes) for prediction in localizer.predict(folder)] == [1, 1, 1]
    with pytest.raises(InputError, match="max_boxes must be positive, got 0"):
        Localizer.from_checkpoint(checkpoint, max_boxes=0)


def test_several_boxes_in_every_format(checkpoint, pictures, two_objects, tmp_path, capsys):
    path, _ = two_objects
    arguments = [path, pictures[0], "--checkpoint", checkpoint, "--threshold", 0.5]
    for form in ("json", "coco", "csv", "yolo"):
        assert run_predict(*arguments, "--out", tmp_path, "--format", form, "--max-boxes", 4) == 0
    assert "4 images with 5 boxes in" in capsys.readouterr().out
    entry = json.loads((tmp_path / "predictions.json").read_text())[0]
    assert entry["box"] == entry["boxes"][0]["box"]
    expected = [found["box"] for found in entry["boxes"]]
    assert len(expected) == 2
    certain = entry["classes"][0]["score"]
    scores = [certain * found["score"] for found in entry["boxes"]]

    coco = json.loads((tmp_path / "predictions.coco.json").read_text())
    assert [a["image_id"] for a in coco["annotations"]] == [1, 1, 2, 3, 4]
    assert [a["id"] for a in coco["annotations"]] == [1, 2, 3, 4, 5]
    rows = list(csv.DictReader((tmp_path / "predictions.csv").open()))
    assert [row["image"] for row in rows].count(str(path)) == 2
    lines = (tmp_path / "yolo/labels/two.txt").read_text().splitlines()
    assert len(lines) == 2
    for number, (x0, y0, x1, y1) in enumerate(expected):
        annotation, row = coco["annotations"][number], rows[number]
        assert annotation["bbox"] == pytest.approx([x0, y0, x1 - x0, y1 - y0], abs=0.02)
        assert [float(row[key]) for key in ("x0", "y0", "x1", "y1")] == pytest.approx([x0, y0, x1, y1])
        assert annotation["score"] == pytest.approx(scores[number], abs=2e-6)
        assert float(row["score"]) == pytest.approx(scores[number], abs=2e-6)
        label, xc, yc, w, h = map(float, lines[number].split())
        assert label == 1
        assert [xc * 448, yc * 448, w * 448, h * 448] == pytest.approx(
            [(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0], abs=0.02
        )
    assert run_predict(*arguments, "--out", tmp_path, "--max-boxes", 0) == 2
    assert "max_boxes must be positive, got 0" in capsys.readouterr().err


def test_every_box_is_drawn():
    boxes = [ScoredBox((40, 60, 120, 140), 1.0), ScoredBox((200, 60, 260, 120), 0.5)]
    prediction = Prediction(
        "a", (300, 200), [ClassScore(0, "a", 1.0)], boxes, np.zeros((224, 224), np.float32)
    )
    picture = draw_overlay(Image.new("RGB", (300, 200)), prediction, opacity=0.0)
    for x0, _, x1, y1 in (box for box, _ in boxes):
        for x, y in ((x0, y1 - 10), (x1, y1 - 10), (x1 - 10, y1)):
            assert (picture[y, x] == 255).all()
    assert (picture[100, 160] == 0).all()


def test_predict_says_whose_threshold_it_took(checkpoint, pictures, tmp_path, capsys):
    folder, _ = pictures
    model = load_model(checkpoint)
    cases = (
        (None, (), "threshold between:0.3 (the default: 3 images are too few"),
        (Threshold(0.3), (), "threshold global:0.3 (the checkpoint's)"),
        (Threshold(0.3), ("--threshold", "between:0.4"), "threshold between:0.4 (given)"),
    )
    for stored, options, said in cases:
        model.config.threshold = stored
        saved = save_model(model, tmp_path / "model")
        assert run_predict(folder, "--checkpoint", saved, "--out", tmp_path / "out", *options) == 0
        assert said in capsys.readouterr().out


def test_a_threshold_that_the_images_choose(checkpoint, pictures, tmp_path, capsys, monkeypatch):
    """The images choose, at most 100 of them, in a pass of their own; then one pass uses the stored rule."""
    seen = []
    forward = LocalizationModel.forward
    monkeypatch.setattr(
        LocalizationModel, "forward", lambda self, images: seen.append(len(images)) or forward(self, images)
    )
    _, truth = pictures
    paths = list(truth)
    localizer = Localizer.from_checkpoint(checkpoint)
    assert "tokens of 12 images" in localizer.choose_threshold(paths * 4)
    chosen = localizer.threshold
    # The same by the shares of each image.
    shares = []
    for path in paths:
        pixels = localizer.preprocessing.prepare(Image.open(path).convert("RGB"))[None]
        with torch.no_grad():
            localization = localizer.model(localizer.preprocessing.normalize(pixels))
        shares.append(token_separation(localization.activation_map().numpy(), localization.tokens))
    assert chosen == choose_unboxed(np.concatenate(shares * 4)).threshold
    assert chosen.rule == "between"
    assert chosen.value != 0.3
    seen.clear()
    assert "tokens of 84 images" in localizer.choose_threshold(paths * 84)  # every third of 252
    assert sum(seen) == 84
    seen.clear()
    localizer.predict(paths)
    assert sum(seen) == 3
    for number in range(4):
        for path in paths:
            (tmp_path / "many").mkdir(exist_ok=True)
            (tmp_path / "many" / f"{number}{path.name}").write_bytes(path.read_bytes())
    assert run_predict(tmp_path / "many", "--checkpoint", checkpoint, "--out", tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert f"threshold {chosen} (chosen without boxes, by the tokens of 12 images)" in said


def test_mirror_averages_scores_and_maps(pictures):
    _, truth = pictures
    torch.manual_seed(0)
    model = create_model("deit_tiny_patch16_224", 3, image_size=64, backbone_options=SMALL).eval()
    localizer = Localizer(model, mirror=True)
    turned = [Image.open(path).convert("RGB").transpose(Image.Transpose.FLIP_LEFT_RIGHT) for path in truth]
    for path, prediction, other in zip(
        truth, localizer.predict(list(truth)), localizer.predict(turned), strict=True
    ):
        pixels = localizer.preprocessing.prepare(Image.open(path).convert("RGB"))[None]
        images = localizer.preprocessing.normalize(pixels)
        with torch.no_grad():
            own, mirrored = model(images), model(images.flip(-1))
        scores = ((own.logits + mirrored.logits) / 2).softmax(1)[0]
        best = scores.argmax()
        assert prediction.classes[0].index == best
        assert prediction.classes[0].score == pytest.approx(scores[best].item(), abs=1e-5)
        activation = (own.activation_map(best[None]) + mirrored.activation_map(best[None]).flip(-1))[0] / 2
        np.testing.assert_allclose(prediction.map, literal_uint8(activation.numpy())[0], atol=1e-5)
        # So a mirror image gives the mirrored map.
        np.testing.assert_allclose(other.map, prediction.map[:, ::-1], atol=0.02)


@pytest.mark.parametrize("weight", [0.0, float("nan"), float("inf")], ids=["constant", "NaN", "infinite"])
@pytest.mark.parametrize("side", [32, 16], ids=["2x2", "1x1"])
def test_a_map_that_says_nothing_gives_the_whole_image_and_a_warning(
    tmp_path, caplog, weight, side, pictures
):
    _, truth = pictures
    model = create_model("deit_tiny_patch16_224", 3, image_size=side, backbone_options=SMALL)
    with torch.no_grad():
        model.head.weight.fill_(weight)
    saved = save_model(model, tmp_path / "model")
    path = next(iter(truth))
    assert run_predict(path, "--checkpoint", saved, "--out", tmp_path / "out", "--overlay", "--mirror") == 0
    (entry,) = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert entry["box"] == [0, 0, 448, 448]
    assert f"{path}: the map says nothing, the box is the whole image" in caplog.text


@pytest.mark.parametrize("side", [32, 224])
def test_an_all_negative_map_has_a_box_like_any_other(side, pictures):
    _, truth = pictures
    torch.manual_seed(0)
    model = create_model("deit_tiny_patch16_224", 3, image_size=side, backbone_options=SMALL)
    with torch.no_grad():
        model.head.bias.fill_(-1000)
    localizer = Localizer(model)
    for path in truth:
        localizer.choose_threshold([path] * 12)
        (prediction,) = localizer.predict(path)
        x0, y0, x1, y1 = prediction.box
        assert 0 <= x0 < x1 <= prediction.size[0]
        assert 0 <= y0 < y1 <= prediction.size[1]


def test_the_frame_of_a_whole_image_lies_inside_of_it():
    image = Image.new("RGB", (300, 200))
    whole = Prediction(
        "a",
        (300, 200),
        [ClassScore(0, "a", 1.0)],
        [ScoredBox((0, 0, 300, 200), 1.0)],
        np.zeros((224, 224), np.float32),
    )
    picture = draw_overlay(image, whole, opacity=0.0)
    for edge in (picture[-1, 150], picture[-2, 150], picture[150, 0], picture[150, -1], picture[150, -2]):
        assert (edge == 255).all()


def test_predict_reports_unreadable_images_in_its_exit_status(checkpoint, pictures, tmp_path):
    folder, _ = pictures
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    command = [sys.executable, "-m", "scm_fast.cli", "predict", str(bad), str(folder)]
    done = subprocess.run(
        [*command, "--checkpoint", str(checkpoint), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert str(bad) in done.stderr
    assert "Traceback" not in done.stderr
    assert "3 images in" in done.stdout
    assert "1 could not be read" in done.stdout
    assert len(json.loads((tmp_path / "out/predictions.json").read_text())) == 3


def test_predict_keeps_files_of_one_name_apart(checkpoint, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for suffix in ("png", "bmp"):
            Image.new("RGB", (32, 32)).save(tmp_path / folder / f"x.{suffix}")
    out = tmp_path / "out"
    status = run_predict(
        tmp_path / "a", tmp_path / "b", "--checkpoint", checkpoint, "--out", out, "--format", "yolo"
    )
    assert status == 0
    stems = ["x", "x-2", "x-3", "x-4"]
    assert sorted(p.stem for p in (out / "yolo/labels").iterdir()) == stems
    assert sorted(p.stem for p in (out / "yolo/images").iterdir()) == stems


def test_wrong_arguments_exit_with_2(checkpoint, pictures, tmp_path, capsys):
    folder, _ = pictures
    assert run_predict(folder, "--checkpoint", tmp_path / "nowhere", "--out", tmp_path) == 2
    assert "nowhere: no such checkpoint" in capsys.readouterr().err
    assert run_predict(folder, tmp_path / "photoz", "--checkpoint", checkpoint, "--out", tmp_path) == 2
    assert f"no such image file or folder: {tmp_path / 'photoz'}" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert run_predict(folder, "--checkpoint", checkpoint, "--out", tmp_path / "file") == 2
    assert "this is a file, not a folder" in capsys.readouterr().err
    assert main(["export", "--checkpoint", str(checkpoint), "--out", str(tmp_path / "model.bin")]) == 2
    assert "must be one of .pt2, .onnx" in capsys.readouterr().err


def test_exported_program_runs_without_the_package(checkpoint, tmp_path, capsys):
    path = tmp_path / "model.pt2"
    assert main(["export", "--checkpoint", str(checkpoint), "--out", str(path)]) == 0
    assert "images: 224 x 224" in capsys.readouterr().out
    images = torch.randn(5, 3, 224, 224)
    torch.save(images, tmp_path / "images.pt")
    code = (
        "import sys, torch; images = torch.load('images.pt'); "
        "out = torch.export.load('model.pt2').module()(images); torch.save(out, 'out.pt'); "
        "assert not any(name.split('.')[0] in ('scm_fast', 'timm') for name in sys.modules), 'imports'"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = {
        name: value for name, value in load_model(checkpoint)(images)._asdict().items() if name != "tokens"
    }
    torch.testing.assert_close(torch.load(tmp_path / "out.pt"), expected, atol=1e-5, rtol=1e-4)


def test_export_to_a_full_disk(checkpoint, tmp_path):
    """One line, and the file that was there is as it was."""
    path = tmp_path / "model.pt2"
    path.write_bytes(b"the old one")
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
        "from scm_fast.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "export", "--checkpoint", str(checkpoint), "--out", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr == f"scm-fast export: error: {path}: could not be written (File too large)\n"
    assert path.read_bytes() == b"the old one"
    assert os.listdir(tmp_path) == ["model.pt2"]


@pytest.mark.parametrize("method", ["scm", "cls"])
@pytest.mark.parametrize("backbone", ["deit_tiny_patch16_224", "vit_small_patch16_dinov3"])
def test_onnx_equals_the_model_for_any_batch(tmp_path, backbone, method):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    model = create_model(backbone, 5, method, image_size=64, backbone_options=SMALL)
    model.config.threshold = Threshold(0.4, "deviation", "linear")
    path = tmp_path / "model.onnx"
    assert export_model(model, path) < 1e-5
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = ["logits", "attention"] + ["semantic"] * (method == "scm")
    assert [output.name for output in session.get_outputs()] == names
    for value in (*session.get_inputs(), *session.get_outputs()):
        assert value.shape[0] == "batch"
    about = {key: json.loads(text) for key, text in session.get_modelmeta().custom_metadata_map.items()}
    assert about == {
        "class_names": ["0", "1", "2", "3", "4"],
        "image_size": [64, 64],
        "mean": list(model.config.mean),
        "std": list(model.config.std),
        "threshold": {"value": 0.4, "rule": "deviation", "interpolation": "linear"},
    }
    for batch in (1, 5):
        images = torch.randn(batch, 3, 64, 64)
        outputs = session.run(None, {"images": images.numpy()})
        expected = [t for t in model.for_inference()(images)[:3] if t is not None]
        for ours, theirs in zip(outputs, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(ours), theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(not DATA, reason="SCM_FAST_DATA is not set: the folder with weights and CUB images")
@pytest.mark.parametrize("method", ["scm", "tscam"])
def test_real_birds(tmp_path, method):
    weights = Path(DATA) / "weights/deit_tiny_patch16_224.safetensors"
    model = create_model("deit_tiny_patch16_224", 200, method, pretrained=weights)
    folder = Path(DATA) / "CUB_200_2011/images/014.Indigo_Bunting"
    checkpoint = save_model(model, tmp_path / "checkpoint")
    files = sorted(folder.glob("*.jpg"))[:3]
    assert run_predict(*files, "--checkpoint", checkpoint, "--out", tmp_path / "out", "--overlay") == 0
    for entry in json.loads((tmp_path / "out/predictions.json").read_text()):
        x0, y0, x1, y1 = entry["box"]
        assert 0 <= x0 < x1 <= entry["width"]
        assert 0 <= y0 < y1 <= entry["height"]
    assert len(list((tmp_path / "out/overlays").glob("*.jpg"))) == 3


def test_device_that_is_not_there():
    from scm_fast.devices import resolve_device

    with pytest.raises(InputError, match="device 'cuda:99' was asked for, but torch sees"):
        resolve_device("cuda:99")
    with pytest.raises(InputError, match="device must be cpu, cuda or cuda:N, got 'gpu'"):
        resolve_device("gpu")
