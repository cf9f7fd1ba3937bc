"""--map, --refine and --model from the command line and from Python."""

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
    assert "threshold between:0.2 (the default" in capsys.readouterr().out
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
    assert Localizer(model, "cpu").follows_checkpoint
    for options in ({"map": "rollout"}, {"refine": True}):
        localizer = Localizer(model, "cpu", **options)
        assert not localizer.follows_checkpoint
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
