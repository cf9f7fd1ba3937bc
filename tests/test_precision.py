"""Logits and maps are float32 under autocast too, and one class is the best everywhere."""

import json

import numpy as np
import pytest
import torch
from data_folders import write_cub
from PIL import Image

from scm_fast import Localizer, create_model, save_model
from scm_fast.cli import main
from scm_fast.cli.program import Parser
from scm_fast.data import DataSource
from scm_fast.evaluation import EvaluationSettings, Predictor, evaluate, pipeline
from scm_fast.models import Localization
from scm_fast.models.maps import map_names
from scm_fast.models.methods import method_names
from scm_fast.training import TrainConfig

CPU = torch.device("cpu")
SMALL = {"patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 2}
CLASSES = 200


def make_model(method: str = "scm", classes: int = CLASSES):
    torch.manual_seed(0)
    name = "vit_tiny_patch16_224"
    return create_model(name, classes, method, image_size=32, backbone_options=SMALL).eval()


@pytest.mark.parametrize("method", method_names())
@pytest.mark.parametrize("amp", [torch.bfloat16, torch.float16], ids=str)
def test_logits_and_maps_leave_the_model_in_float32(method, amp):
    model, images = make_model(method), torch.randn(2, 3, 32, 32)
    with torch.autocast("cpu", dtype=amp), torch.no_grad():
        found = model(images)
        trained = model.train()(images)
    assert found.logits.dtype == found.attention.dtype == trained.logits.dtype == torch.float32
    assert found.semantic is None or found.semantic.dtype == torch.float32
    assert model.eval().double()(images.double()).logits.dtype == torch.float64


@pytest.mark.parametrize("method", method_names())
def test_logits_are_not_rounded_to_sixteen_bits(method):
    """Or the best of many classes would often be equal."""
    model, images = make_model(method), torch.randn(64, 3, 32, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        best = model(images).logits.topk(6).values
    ties = (best[:, 1:] == best[:, :-1]).any(1)
    assert not ties.any()
    rounded = best.bfloat16()
    assert (rounded[:, 1:] == rounded[:, :-1]).any(), "or this test says nothing"


@pytest.mark.parametrize("name", map_names())
def test_maps_without_training_are_float32(name):
    predictor = Predictor(make_model("cls", 5), CPU, amp=torch.bfloat16, map=name)
    _, maps = predictor(torch.randn(2, 3, 32, 32), lambda logits: logits.argmax(1, keepdim=True))
    assert maps.dtype == torch.float32


def test_the_first_of_equal_classes_is_the_best():
    logits = torch.randn(50, CLASSES).mul(2).round()
    found = Localization(logits, torch.rand(50, 4, 4), torch.rand(50, CLASSES, 4, 4), torch.rand(50, 8, 4, 4))
    for count in (1, 2, 5, CLASSES):
        scores, classes = found.top(count)
        assert torch.equal(classes[:, 0], logits.argmax(1))
        assert torch.equal(scores, logits.softmax(1).gather(1, classes))
        assert (scores[:, 1:] <= scores[:, :-1]).all()
    assert torch.equal(found.activation_map(), found.activation_map(classes[:, 0]))


def test_map_and_class_of_an_image_belong_together(tmp_path, monkeypatch):
    """Although all classes are equal in their scores, and differ in their maps."""
    model = make_model("tscam", 3)
    forward = type(model).forward

    def tied(self, images):
        return forward(self, images)._replace(logits=torch.zeros(len(images), 3))

    monkeypatch.setattr(type(model), "forward", tied)
    seen = []
    accumulate = pipeline.Evaluator.accumulate

    def noted(self, **columns):
        seen.append((columns["top_class"], columns["maps"]))
        accumulate(self, **columns)

    monkeypatch.setattr(pipeline.Evaluator, "accumulate", noted)
    source = DataSource(str(write_cub(tmp_path / "CUB")))
    evaluate(Predictor(model, CPU), source, EvaluationSettings("maxbox", split="val", workers=0))
    ((classes, maps),) = seen
    assert (np.asarray(classes)[:, 0] == 0).all()
    dataset = source.split("val")
    for row in np.flatnonzero(dataset.labels == 0):
        assert np.array_equal(maps[row, 0], maps[row, 1])
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8))
    (found,) = Localizer(model, "cpu").predict(picture)
    assert [score.index for score in found.classes] == [0, 1, 2]


def default_of(command: str, option: str) -> str:
    from importlib import import_module

    parser = Parser(command, None)
    import_module(f"scm_fast.cli.{command}").add_arguments(parser)
    return parser.get_default(option)


def test_all_commands_have_the_same_default():
    assert default_of("evaluate", "amp") == default_of("predict", "amp") == TrainConfig().amp == "auto"
    assert Localizer(make_model(), "cpu").predictor.amp is None


def test_predict_in_bf16(tmp_path):
    save_model(make_model("cls", 3), tmp_path / "model")
    Image.new("RGB", (40, 30), "red").save(tmp_path / "photo.png")
    found = []
    for amp in ("none", "bf16"):
        out = str(tmp_path / amp)
        given = [str(tmp_path / "photo.png"), "--checkpoint", str(tmp_path / "model"), "--device", "cpu"]
        assert main(["predict", *given, "--out", out, "--amp", amp]) == 0
        (entry,) = json.loads((tmp_path / amp / "predictions.json").read_text())
        found.append([score["score"] for score in entry["classes"]])
    assert found[0] != found[1]
    assert found[0] == pytest.approx(found[1], abs=0.02)
