"""--map, --refine and --model from the command line and from Python."""

import contextlib
import csv
import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from test_evaluate_cli import make_data

from scm_fast import InputError, Localizer, create_model, save_model
from scm_fast.cli import main
from scm_fast.models import load_classifier
from scm_fast.models.maps import get_map, look, map_names
from scm_fast.models.refinement import refine_maps
from scm_fast.reference import spatial_calibration
from scm_fast.threshold import Threshold

SMALL = {"embed_dim": 48, "depth": 3, "num_heads": 3}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(3):
        Image.fromarray(rng.integers(0, 255, (90, 120, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "deit.pth"
    torch.save(timm.create_model("deit_tiny_patch16_224").state_dict(), file)
    return file


def small_model(**options):
    torch.manual_seed(0)
    model = create_model("deit_tiny_patch16_224", 3, image_size=64, backbone_options=SMALL, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def test_a_classifier_of_timm_localises_as_it_is(photos, weights, tmp_path, capsys):
    options = ["--model", "deit_tiny_patch16_224", "--pretrained", str(weights), "--format", "csv"]
    assert main(["predict", str(photos), *options, "--out", str(tmp_path)]) == 0
    rows = list(csv.DictReader((tmp_path / "predictions.csv").open()))
    assert len(rows) == 3
    assert "threshold between:0.3 (the default" in capsys.readouterr().out
    network = timm.create_model("deit_tiny_patch16_224").eval()
    network.load_state_dict(torch.load(weights))
    model = load_classifier("deit_tiny_patch16_224", weights)
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(model(images).logits, network(images))
    assert model.config.class_names[1].startswith("goldfish")


def test_a_map_that_is_asked_for_is_the_one_that_is_cut(photos, weights, tmp_path):
    model = load_classifier("deit_tiny_patch16_224", weights)
    for name in ("rollout", "gradcam"):
        localizer = Localizer(model, "cpu", map=name)
        prediction = localizer.predict(photos / "0.png")[0]
        pixels = localizer.preprocessing.prepare(Image.open(photos / "0.png")).unsqueeze(0)
        localization, maps = look(get_map(name), model, localizer.preprocessing.normalize(pixels))
        grid = maps(localization.logits.argmax(1, keepdim=True))[0, 0].numpy()
        centres = prediction.map[8::16, 8::16]
        assert np.corrcoef(grid.ravel(), centres.ravel())[0, 1] > 0.9
        assert localizer.predictor.map_name == name


def test_the_threshold_of_a_checkpoint_is_for_its_own_map(photos):
    model = small_model()
    model.config.threshold = Threshold(0.3)
    assert Localizer(model, "cpu").choice.reason == "the checkpoint's"
    for options in ({"map": "rollout"}, {"refine": True}):
        localizer = Localizer(model, "cpu", **options)
        assert localizer.choice.is_open
        assert localizer.threshold != Threshold(0.3)
    assert Localizer(model, "cpu", threshold=0.1, map="rollout").threshold.value == 0.1


def test_refined_maps_are_those_of_the_calibration_on_the_tokens():
    torch.manual_seed(0)
    tokens, maps = torch.randn(2, 6, 4, 5), torch.rand(2, 3, 4, 5)
    refined = refine_maps(tokens, maps)
    parameters = torch.ones(1), torch.full((1,), 0.5)
    for k in range(3):
        _, expected, _, _ = spatial_calibration(tokens, maps[:, k], *parameters, (4,), 0.002, False)
        torch.testing.assert_close(refined[:, k], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["scm", "sat"])
def test_evaluate_tells_which_map_it_cut(tmp_path, method):
    data = make_data(tmp_path / "data", splits=(("train", 3), ("val", 3), ("test", 6)))
    save_model(small_model(method=method), tmp_path / "model")
    figures = {}
    for options in ([], ["--map", "rollout"], ["--map", "chefer", "--refine"]):
        command = [
            "evaluate",
            "--checkpoint",
            str(tmp_path / "model"),
            "--data",
            str(data),
            "--device",
            "cpu",
        ]
        assert main([*command, "--workers", "0", "--report", "--out", str(tmp_path / "out"), *options]) == 0
        metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
        figures[metrics["map"]] = metrics["curves"]
        assert f"map {metrics['map']}." in (tmp_path / "out" / "report.html").read_text()
    assert list(figures) == [f"of method {method}", "rollout", "chefer, refined"]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("shapes"), splits=(("train", 3), ("val", 3), ("test", 6)))


@pytest.fixture(scope="module")
def gradcam_of_a_classifier(shapes, weights, tmp_path_factory):
    """Evaluate a classifier of 1000 classes on data with three."""
    out = tmp_path_factory.mktemp("gradcam")
    deit = ["--model", "deit_tiny_patch16_224", "--pretrained", str(weights), "--map", "gradcam"]
    options = ["--data", str(shapes), "--device", "cpu", "--workers", "0", "--report", "--out", str(out)]
    assert main(["evaluate", *deit, *options]) == 0
    return out


def test_maps_of_a_foreign_classifier_are_of_the_class_that_it_finds(
    gradcam_of_a_classifier, shapes, weights
):
    """The boxes are those that Localizer finds with the same threshold, which knows nothing of the data."""
    metrics = json.loads((gradcam_of_a_classifier / "metrics.json").read_text())
    threshold = Threshold(metrics["threshold"], metrics["threshold_rule"], metrics["interpolation"])
    model = load_classifier("deit_tiny_patch16_224", weights)
    localizer = Localizer(model, "cpu", threshold=threshold, map="gradcam")
    rows = list(csv.DictReader((gradcam_of_a_classifier / "predictions.csv").open()))
    assert len(rows) == 6
    for row in rows:
        (prediction,) = localizer.predict(shapes / row["image"])
        assert int(row["predicted"]) == prediction.classes[0].index
        assert row["predicted_name"] == prediction.classes[0].name
        assert [float(row[corner]) for corner in ("x0", "y0", "x1", "y1")] == pytest.approx(
            prediction.box, abs=0.01
        )
        assert row["true_class_iou"] == row["iou"]
    hits = np.mean([float(row["iou"]) >= 0.5 for row in rows])
    assert metrics["metrics"]["gt_known"]["value"] == pytest.approx(100 * hits)


def test_a_foreign_classifier_has_no_figures_of_classification(gradcam_of_a_classifier, shapes):
    metrics = json.loads((gradcam_of_a_classifier / "metrics.json").read_text())
    assert set(metrics["metrics"]) == {
        *("gt_known", "gt_known_published", "max_box_acc", "max_box_acc_v2", "mean_iou"),
    }
    assert metrics["foreign_classes"]
    assert "class" not in metrics["errors"]
    assert sum(metrics["errors"].values()) == pytest.approx(100)
    assert not [name for name in metrics["curves"] if name.startswith("top")]
    assert not [name for scores in metrics["baselines"].values() for name in scores if name.startswith("top")]
    report = (gradcam_of_a_classifier / "report.html").read_text()
    assert "The model has 1000 classes of its own, which are not those of the data" in report
    assert "Top-1" not in report
    assert "Which class is taken for which" not in report
    coco = json.loads((gradcam_of_a_classifier / "predictions.coco.json").read_text())
    assert len(coco["categories"]) == 1000
    timing = metrics["timing"]
    assert (timing["device"], timing["processes"]) == ("cpu", 1)
    assert timing["cpu_seconds_per_image"] > 0
    assert 0 < timing["seconds_per_image"] <= 1 / metrics["images_per_second"]


def test_maps_of_evaluations_are_drawn_as_they_were_evaluated(
    gradcam_of_a_classifier, shapes, tmp_path, capsys, monkeypatch
):
    pytest.importorskip("matplotlib")
    from scm_fast.runs import comparison_maps, read_folder

    save_model(small_model(), tmp_path / "model")
    command = ["evaluate", "--checkpoint", str(tmp_path / "model"), "--data", str(shapes), "--workers", "0"]
    assert main([*command, "--map", "rollout", "--refine", "--out", str(tmp_path / "rollout")]) == 0
    folders = [gradcam_of_a_classifier, tmp_path / "rollout"]
    picture = tmp_path / "maps.png"
    assert main(["compare", *map(str, folders), "--maps", str(picture), "--images", "0", "5"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    # The boxes in the picture are those that the evaluations wrote.
    drawn = []
    monkeypatch.setattr(
        comparison_maps, "outline_boxes", lambda axes, truth, found: drawn.append((list(truth), found))
    )
    found = [read_folder(folder) for folder in folders]
    comparison_maps.comparison_maps(found, ["5"], torch.device("cpu"))
    for folder, (truth, box) in zip(folders, drawn, strict=True):
        last = list(csv.DictReader((folder / "predictions.csv").open()))[5]
        corners = [float(last[f"true_class_{corner}"]) for corner in ("x0", "y0", "x1", "y1")]
        assert box == pytest.approx(corners, abs=0.01)
        assert len(truth) == 1


def test_what_evaluate_needs_beside_a_model_is_named(shapes, weights, tmp_path, capsys):
    def refusal(*options):
        with contextlib.suppress(SystemExit):  # argparse
            assert main(["evaluate", "--data", str(shapes), *map(str, options)]) == 2
        return capsys.readouterr().err

    deit = ("--model", "deit_tiny_patch16_224", "--pretrained", weights)
    assert "not allowed with argument --checkpoint" in refusal("--checkpoint", tmp_path, *deit)
    assert "one of the arguments --checkpoint --model is required" in refusal("--out", tmp_path)
    assert "--out: name a folder" in refusal(*deit)
    assert "--save-threshold: goes with --checkpoint" in refusal(*deit, "--out", tmp_path, "--save-threshold")
    assert "--pretrained: goes with --model" in refusal("--checkpoint", tmp_path, "--pretrained", weights)


def test_wrong_models_and_maps_are_named(photos, weights, tmp_path, capsys):
    def refusal(*options):
        assert main(["predict", str(photos), "--out", str(tmp_path), *map(str, options)]) == 2
        return capsys.readouterr().err

    deit = ("--model", "deit_tiny_patch16_224", "--pretrained", weights)
    assert f"map must be one of {', '.join(map_names())}, got 'cam'" in refusal(*deit, "--map", "cam")
    assert "has no classifier of its own" in refusal("--model", "vit_small_patch16_224.dino")
    assert "did you mean deit_tiny_patch16_224" in refusal("--model", "deit_tiny_patch16")
    assert "no CLS token" in refusal("--model", "swin_tiny_patch4_window7_224", "--pretrained", weights)
    assert "--pretrained: goes with --model" in refusal("--checkpoint", tmp_path, "--pretrained", weights)
    torch.save(
        {k: v for k, v in torch.load(weights).items() if not k.startswith("head.")}, tmp_path / "headless.pth"
    )
    with pytest.raises(InputError, match="has no classifier of 1000 classes"):
        load_classifier("deit_tiny_patch16_224", tmp_path / "headless.pth")
