"""SAT's area, measured before training on the boxes of a short training by SCM."""

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from data_folders import write_cub

from scm_fast import InputError, Localizer, create_model, load_model, save_model
from scm_fast.cli import main
from scm_fast.data import open_dataset
from scm_fast.threshold import Threshold
from scm_fast.training import make_config, measure_object_share, object_share
from scm_fast.training.object_share import train_briefly
from scm_fast.training.recipes import read_recipe

SMALL = {"patch_size": 16, "embed_dim": 32, "depth": 4, "num_heads": 2}
BACKBONE = "vit_tiny_patch16_224"


def make_start(folder):
    """A network to start from, whose attention differs from patch to patch."""
    torch.manual_seed(0)
    model = create_model(BACKBONE, 3, "cls", image_size=64, backbone_options=SMALL)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    save_model(model, folder)
    return model


def train(tmp_path, *options, area="measured"):
    given = {
        "method": "sat",
        "method-options": f"{{area: {area}}}",
        "backbone": BACKBONE,
        "backbone-options": str(SMALL).replace("'", ""),
        "pretrained": str(tmp_path / "start"),
        "image-size": "64",
        "epochs": "2",
        "warmup-epochs": "0",
        "lr": "1e-4",
        "min-lr": "1e-4",
        "global-batch": "8",
        "workers": "0",
        "device": "cpu",
        "report": "false",
        "data": str(tmp_path / "CUB"),
        "out": str(tmp_path / "run"),
    }
    return main(["train", *(w for name, value in given.items() for w in (f"--{name}", value)), *options])


@pytest.fixture(autouse=True)
def few_steps(request, monkeypatch):
    if "real" not in request.node.name:
        monkeypatch.setattr(object_share, "STEPS", 2)


def test_the_share_is_that_of_ellipses_in_the_boxes(tmp_path):
    model = make_start(tmp_path / "start")
    dataset = open_dataset(str(write_cub(tmp_path / "CUB")), "train")
    paths = [record.path for record in dataset.records]
    localizer = Localizer(model, "cpu")
    localizer.choose_threshold(paths)
    shares = []
    for found in localizer.predict(paths):
        x0, y0, x1, y1 = found.box
        shares.append(np.pi / 4 * (x1 - x0) * (y1 - y0) / (found.size[0] * found.size[1]))
    assert min(shares) != max(shares)
    assert measure_object_share(model, dataset) == pytest.approx(np.mean(shares))


def test_the_short_training_is_scm_from_the_given_weights_and_the_same_again(tmp_path, monkeypatch):
    start = make_start(tmp_path / "start")
    data = write_cub(tmp_path / "CUB")
    given = {"data": str(data), "backbone": BACKBONE, "backbone_options": SMALL, "image_size": 64}
    sat = {"method": "sat", "frozen_blocks": 2, "head_lr": 1e-3, "warmup_epochs": 0, "average": 0.9}
    config = make_config({**given, **sat, "pretrained": str(tmp_path / "start")}, "test")
    dataset = config.source().split("train")
    one, two = (train_briefly(config, dataset, torch.device("cpu")) for _ in range(2))
    assert one.config.method == "scm"
    assert not one.training
    for (name, mine), (_, other) in zip(one.named_parameters(), two.named_parameters(), strict=True):
        assert torch.equal(mine, other), name
    weight = "blocks.0.attn.qkv.weight"
    moved = (one.backbone.get_parameter(weight) - start.backbone.get_parameter(weight)).abs().max()
    assert 0 < moved < 3 * 2 * object_share.LR  # two steps of Adam, of its own rate, and no block is frozen


def test_unreadable_images_are_passed_over_if_they_may_be(tmp_path):
    make_start(tmp_path / "start")
    data = write_cub(tmp_path / "CUB")
    given = {"data": str(data), "backbone": BACKBONE, "backbone_options": SMALL, "image_size": 64}
    given |= {"pretrained": str(tmp_path / "start"), "skip_bad_images": True}
    config = make_config(given, "test")
    dataset = config.source().split("train")
    paths = [Path(record.path) for record in dataset.records]
    paths[0].write_bytes(b"no image")
    train_briefly(config, dataset, torch.device("cpu"))
    strict = dataclasses.replace(config, skip_bad_images=False)
    for path in paths:
        path.write_bytes(b"no image")
    for each in (config, strict):
        with pytest.raises(InputError, match="cannot read this image"):
            train_briefly(each, dataset, torch.device("cpu"))


def test_training_measures_once_and_a_resumed_run_keeps_the_number(tmp_path, capsys, monkeypatch):
    write_cub(tmp_path / "CUB")
    make_start(tmp_path / "start")
    assert train(tmp_path, "--epochs", "1") == 0
    assert "objects take about" in capsys.readouterr().out
    area = load_model(tmp_path / "run" / "last").method.area
    assert isinstance(area, float)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["method_options"] == {
        "area": "measured"
    }
    monkeypatch.setattr(object_share, "measure_object_share", lambda *_: pytest.fail("measured again"))
    assert train(tmp_path, "--resume", "auto") == 0
    assert "objects take" not in capsys.readouterr().out
    assert load_model(tmp_path / "run" / "last").method.area == area


def test_training_by_the_measured_number_is_training_by_that_number(tmp_path):
    write_cub(tmp_path / "CUB")
    make_start(tmp_path / "start")
    assert train(tmp_path) == 0
    measured = (tmp_path / "run" / "steps.csv").read_text()
    area = load_model(tmp_path / "run" / "last").method.area
    shutil.rmtree(tmp_path / "run")
    assert train(tmp_path, area=area) == 0
    assert (tmp_path / "run" / "steps.csv").read_text() == measured


def test_without_a_pretrained_network_it_is_refused(tmp_path, capsys):
    write_cub(tmp_path / "CUB")
    assert train(tmp_path, "--pretrained", "false") == 2
    assert "area: measured needs a pretrained network" in capsys.readouterr().err


def test_a_loop_of_ones_own_is_told_to_give_a_number():
    model = create_model(
        BACKBONE, 3, "sat", image_size=64, backbone_options=SMALL, method_options={"area": "measured"}
    )
    with pytest.raises(InputError, match=r"scm_fast\.training\.measure_object_share"):
        model.train()(torch.randn(2, 3, 64, 64))


def test_a_mask_is_cut_by_otsu_where_nobody_chooses(tmp_path):
    torch.manual_seed(0)
    model = create_model(BACKBONE, 3, "sat", image_size=64, backbone_options=SMALL)
    images = np.random.default_rng(0).integers(0, 256, (12, 64, 64, 3), dtype=np.uint8)
    localizer = Localizer(model, "cpu")
    assert localizer.threshold == Threshold(1.0, "between")
    assert localizer.choose_threshold(images) == "where the method cuts its own map"
    assert localizer.threshold == Threshold(1.0, "between")
    other = Localizer(model, "cpu", map="attention")  # that of another map is chosen by the images
    other.choose_threshold(images)
    assert other.threshold != Threshold(1.0, "between")


@pytest.mark.slow
@pytest.mark.skipif("SCM_FAST_DATA" not in os.environ, reason="needs SCM_FAST_DATA")
@pytest.mark.parametrize(
    ("data", "box"), [("domains/butterflies/set", 0.44), ("domains/cars/set", 0.55), ("CUB_200_2011", 0.30)]
)
def test_real_objects_are_measured_close_to_their_boxes(data, box):
    """`box` is the mean share of the images that their boxes take."""
    root = Path(os.environ["SCM_FAST_DATA"])
    weights = str(root / "weights" / "deit_tiny_patch16_224.safetensors")
    given = {
        "data": str(root / data),
        "backbone": "deit_tiny_patch16_224",
        "pretrained": weights,
        "amp": "bf16",
    }
    config = make_config(read_recipe("custom_folder") | given, "test")
    dataset = config.source().split("train")
    share = measure_object_share(train_briefly(config, dataset, torch.device("cpu")), dataset)
    assert share == pytest.approx(np.pi / 4 * box, rel=0.2)
