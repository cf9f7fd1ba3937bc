"""Images that get no box: those of empty classes, and those unlike the validation images; in every output."""

import csv
import json

import numpy as np
import pytest
import torch
from data_folders import write_cub

from scm_fast import InputError, Localizer, create_model, load_model, save_model
from scm_fast.cli import main
from scm_fast.evaluation.emptiness import Emptiness, confidence, confidence_percentiles
from scm_fast.models.config import ModelConfig

SMALL = {"patch_size": 16, "embed_dim": 32, "depth": 2, "num_heads": 2}
NAMES = ["bird", "free", "plane"]


def make_model(**options):
    torch.manual_seed(0)
    return create_model(
        "vit_tiny_patch16_224",
        3,
        "tscam",
        image_size=64,
        backbone_options=SMALL,
        class_names=NAMES,
        **options,
    )


def images(count=6):
    return np.random.default_rng(0).integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)


def always(model, label):
    """Make the model find one class in every image."""
    with torch.no_grad():
        model.head.bias[label] += 100
    return model


def test_percentiles_are_of_the_log_sum_of_exponentials():
    logits = torch.tensor([[0.0, 0.0], [1.0, 3.0]])
    expected = [np.log(2), np.log(np.e + np.e**3)]
    assert confidence(logits).tolist() == pytest.approx(expected)
    percentiles = confidence_percentiles(confidence(logits).numpy())
    assert len(percentiles) == 101
    assert percentiles[::50] == pytest.approx([expected[0], sum(expected) / 2, expected[1]], abs=1e-4)
    assert confidence_percentiles(np.zeros(0, np.float32)) is None


def test_an_image_is_rejected_below_the_share_of_validation_images():
    config = ModelConfig("x", 3, class_names=NAMES, confidences=[float(i) for i in range(101)])
    assert Emptiness(config, NAMES, 0.05).reason(0, 5.1) == ""
    assert "95% of the validation images" in Emptiness(config, NAMES, 0.05).reason(0, 4.9)
    assert Emptiness(config, NAMES, 0.0).reason(0, -1e9) == ""


def test_images_of_an_empty_class_have_no_box_and_others_keep_theirs():
    model = make_model(empty_classes=["free"])
    plain = Localizer(make_model(), "cpu").predict(images())
    for mine, other in zip(Localizer(model, "cpu").predict(images()), plain, strict=True):
        if mine.classes[0].name == "free":
            assert (mine.boxes, mine.box) == ([], None)
            assert mine.empty == "class free shows no object"
        else:
            assert (mine.boxes, mine.empty) == (other.boxes, "")
    assert all(p.box is None for p in Localizer(always(model, 1), "cpu").predict(images()))
    assert all(p.box is not None for p in Localizer(always(make_model(), 0), "cpu").predict(images()))


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="empty_classes: fre is not among the classes bird, free, plane"):
        make_model(empty_classes=["fre"])
    with pytest.raises(InputError, match="no confidences of validation images"):
        Localizer(make_model(), "cpu", reject=0.1)
    with pytest.raises(InputError, match=r"reject must be in \[0, 1\), got 1.5"):
        Localizer(make_model(), "cpu", reject=1.5)


def test_they_are_stored_with_the_model_but_not_for_images_of_another_size(tmp_path):
    model = make_model(empty_classes=["free"])
    model.config.confidences = [float(i) for i in range(101)]
    again = load_model(save_model(model, tmp_path))
    assert (again.config.empty_classes, again.config.confidences) == (["free"], model.config.confidences)
    assert load_model(tmp_path, 96).config.confidences is None


def test_every_format_has_images_without_a_box(tmp_path, capsys):
    from PIL import Image

    photos = tmp_path / "photos"
    photos.mkdir()
    for number, pixels in enumerate(images(3)):
        Image.fromarray(pixels).save(photos / f"{number}.png")
    model = make_model()
    model.config.confidences = [1e3 + i for i in range(101)]  # no image is that certain
    save_model(model, tmp_path / "model")
    for name in ("json", "csv", "coco", "yolo"):
        given = ["--checkpoint", tmp_path / "model", "--out", tmp_path / name, "--format", name]
        assert main(["predict", *map(str, [photos, *given]), "--reject", "0.05", "--overlay"]) == 0
        assert "3 images, 3 of them without a box" in capsys.readouterr().out
    found = json.loads((tmp_path / "json" / "predictions.json").read_text())
    assert [(one["box"], one["boxes"]) for one in found] == [(None, [])] * 3
    assert "validation images" in found[0]["empty"]
    rows = list(csv.DictReader((tmp_path / "csv" / "predictions.csv").open()))
    assert [(row["image"] != "", row["x0"]) for row in rows] == [(True, "")] * 3
    coco = json.loads((tmp_path / "coco" / "predictions.coco.json").read_text())
    assert (len(coco["images"]), coco["annotations"]) == (3, [])
    assert [file.read_text() for file in sorted((tmp_path / "yolo/yolo/labels").glob("*.txt"))] == [""] * 3
    assert len(list((tmp_path / "csv" / "overlays").iterdir())) == 3


def test_training_stores_empty_classes_and_confidences_and_a_resumed_run_keeps_them(tmp_path):
    data = write_cub(tmp_path / "CUB")
    given = {
        "method": "tscam",
        "backbone": "vit_tiny_patch16_224",
        "backbone-options": str(SMALL).replace("'", ""),
        "pretrained": "false",
        "image-size": "64",
        "warmup-epochs": "0",
        "lr": "1e-4",
        "min-lr": "1e-4",
        "global-batch": "8",
        "workers": "0",
        "device": "cpu",
        "report": "false",
        "data": str(data),
        "out": str(tmp_path / "run"),
    }
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    assert main(["train", *words, "--epochs", "1", "--empty-classes", "[nothing]"]) == 2
    name = sorted(folder.name for folder in (data / "images").iterdir())[0]
    empty = ("--empty-classes", f"[{name}]")
    assert main(["train", *words, "--epochs", "1", *empty]) == 0
    config = load_model(tmp_path / "run" / "last").config
    assert config.empty_classes == [name]
    assert len(config.confidences) == 101
    assert config.confidences == sorted(config.confidences)
    assert main(["train", *words, "--epochs", "2", *empty, "--resume", "auto"]) == 0
    again = load_model(tmp_path / "run" / "last").config
    assert again.empty_classes == [name]
    assert again.confidences != config.confidences
