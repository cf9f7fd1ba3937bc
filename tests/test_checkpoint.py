"""Checkpoints: what is saved comes back, published files load, and nothing in a file is executed."""

import io
import json
import logging
import os
import pickle
from dataclasses import asdict

import numpy as np
import pytest
import safetensors.torch
import timm
import torch

from scm_fast import InputError, create_model, load_model, save_model
from scm_fast.models.weights import read_file
from scm_fast.threshold import Threshold

SMALL = {"depth": 2, "embed_dim": 48, "num_heads": 3}


def same_evaluation(a, b, size=(64, 64)):
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    for ours, theirs in zip(a.eval()(images), b.eval()(images), strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)


DROPPING = {**SMALL, "drop_path_rate": 0.1}
TWO_BLOCKS = {"iterations": (2, 3), "num_blocks": 2}


@pytest.mark.parametrize(("backbone", "method", "arguments"), [
    ("deit_tiny_patch16_224", "scm", {"calibration": TWO_BLOCKS, "attention_layers": [-1]}),
    ("deit_tiny_patch16_224", "tscam", {"preset": "official", "backbone_options": DROPPING}),
    ("vit_small_patch16_dinov3", "cls", {}),
    ("vit_small_patch16_dinov3", "scm", {"calibration": {"backend": "torch"}}),
])  # fmt: skip
def test_a_saved_model_comes_back(tmp_path, backbone, method, arguments):
    names = ["cat", "dog", "bird"]
    options = {"image_size": (64, 96), "class_names": names, "backbone_options": SMALL, **arguments}
    model = create_model(backbone, 3, method, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.config.threshold = Threshold(0.35, interpolation="linear")
    folder = save_model(model, tmp_path / "run" / "checkpoint")
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    for path in (folder, folder / "model.safetensors"):
        loaded = load_model(path)
        assert not loaded.training
        same_evaluation(loaded, model, (64, 96))
        assert json.dumps(asdict(loaded.config)) == json.dumps(asdict(model.config))
        state = loaded.state_dict()
        assert state.keys() == model.state_dict().keys()
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    if method == "scm":
        ours, theirs = loaded.calibration, model.calibration
        assert ours.settings == theirs.settings


def test_an_inference_copy_can_be_saved(tmp_path):
    model = create_model("deit_tiny_patch16_224", 3, image_size=64, backbone_options=SMALL)
    loaded = load_model(save_model(model.for_inference(), tmp_path))
    assert loaded.calibration is None
    same_evaluation(loaded, model)


@pytest.mark.parametrize("method", ["scm", "sat", "cls"])
def test_a_model_for_images_of_another_size(tmp_path, method):
    """It is what the network makes of such images if it takes any, and takes no others."""
    any_size = SMALL | {"depth": 3, "dynamic_img_size": True}
    model = create_model("deit_tiny_patch16_224", 3, method, image_size=64, backbone_options=any_size)
    model.config.threshold = Threshold(0.35)
    folder = save_model(model, tmp_path / "checkpoint")
    loaded = load_model(folder, (96, 80))
    assert (loaded.config.image_size, loaded.config.threshold) == ((96, 80), None)
    assert loaded.backbone.pos_embed.shape == (1, 1 + 6 * 5, 48)
    images = torch.randn(2, 3, 96, 80)
    for ours, theirs in zip(loaded(images), model.eval()(images), strict=True):
        assert (ours is None and theirs is None) or torch.allclose(ours, theirs, atol=1e-5)
    same_evaluation(load_model(save_model(loaded, tmp_path / "again")), loaded, (96, 80))
    same_evaluation(load_model(folder, 64), model)
    with pytest.raises(InputError, match=r"image_size is 100 x 100: both must be multiples of 16"):
        load_model(folder, 100)
    with pytest.raises(InputError, match=r"image_size\.0: .* greater than 0, got '-64'"):
        load_model(folder, -64)


def published_state(num_classes=6, blocks=4):
    """A state dict as the published training code saves it, from a DeiT-Tiny of timm."""
    deit = timm.create_model("deit_tiny_patch16_224", num_classes=0)
    state = {f"module.{name}": value for name, value in deit.state_dict().items()}
    state["module.head.weight"] = torch.randn(num_classes, 192, 3, 3)
    state["module.head.bias"] = torch.randn(num_classes)
    for block in range(blocks):
        state[f"module.layers.{block}.thred"] = torch.tensor([0.5 + block])
        state[f"module.layers.{block}.fuse._loss_rate"] = torch.tensor([1.0 - block / 10])
    return state


def test_a_published_scm_file_loads(tmp_path):
    state = published_state()
    path = tmp_path / "ckpt.pth"
    torch.save({"epoch": 29, "state_dict": state, "best_map": np.float64(96.6)}, path)
    model = load_model(path)
    assert (model.config.backbone, model.config.method, model.config.preset) == (
        "deit_tiny_patch16_224", "scm", "official",
    )  # fmt: skip
    assert model.config.num_classes == 6
    assert model.calibration.settings.iterations == (16, 4, 4, 4)
    assert model.calibration.settings.detach_init
    torch.testing.assert_close(model.calibration.beta.data, torch.tensor([0.5, 1.5, 2.5, 3.5]))
    torch.testing.assert_close(model.calibration.lam.data, torch.tensor([1.0, 0.9, 0.8, 0.7]))
    assert torch.equal(model.head.weight, state["module.head.weight"])
    for name, value in model.backbone.state_dict().items():
        assert torch.equal(value, state[f"module.{name}"]), name
    assert model.eval()(torch.randn(1, 3, 224, 224)).semantic.shape == (1, 6, 14, 14)
    same_evaluation(load_model(save_model(model, tmp_path / "ours")), model, (224, 224))
    same_evaluation(load_model(path, 256), load_model(tmp_path / "ours", 256), (256, 256))


def test_a_published_tscam_file_loads(tmp_path):
    path = tmp_path / "model_best.pth.tar"
    torch.save({"epoch": 60, "state_dict": published_state(blocks=0), "best_map": 0.71}, path)
    model = load_model(path)
    assert (model.config.method, model.calibration) == ("tscam", None)
    assert model(torch.randn(1, 3, 224, 224)).logits.shape == (1, 6)


def test_a_file_that_is_no_checkpoint_says_what_is_wrong(tmp_path):
    with pytest.raises(InputError, match=r"nowhere: no such checkpoint"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(
        InputError, match=r"a checkpoint is a folder with config\.json and model\.safetensors"
    ):
        load_model(tmp_path)
    deit = timm.create_model("deit_tiny_patch16_224").state_dict()
    torch.save({"model": deit}, tmp_path / "deit.pth")
    with pytest.raises(InputError, match=r"deit\.pth: not a published .* create_model\(pretrained=\.\.\.\)"):
        load_model(tmp_path / "deit.pth")
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(InputError, match=r"text\.pth: this is not a weight file"):
        load_model(tmp_path / "text.pth")
    state = published_state()
    del state["module.blocks.3.mlp.fc1.bias"]
    state["module.blocks.3.extra"] = torch.zeros(1)
    torch.save({"state_dict": state}, tmp_path / "broken.pth")
    with pytest.raises(InputError, match=r"1 missing.*blocks\.3\.mlp\.fc1\.bias; 1 not in.*blocks\.3\.extra"):
        load_model(tmp_path / "broken.pth")


def test_a_broken_config_is_named(tmp_path):
    model = create_model("deit_tiny_patch16_224", 3, "tscam", image_size=64, backbone_options=SMALL)
    config = save_model(model, tmp_path) / "config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps(values | {"colour": 1}))
    with pytest.raises(InputError, match=r"config\.json: unknown entries colour"):
        load_model(tmp_path)
    config.write_text("{")
    with pytest.raises(InputError, match=r"config\.json: not a JSON file"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_classes": 4}, "num_classes is 4, but the weights beside it are of 3"),
        ({"num_classes": 0}, "num_classes: input should be greater than 0"),
        (
            {"image_size": [1_000_000, 1_000_000]},
            r"image_size\.0: input should be less than or equal to 8192",
        ),
        ({"image_size": 64}, "image_size: input should be a valid tuple, got '64'"),
        ({"image_size": [96, 96]}, r"1 of another shape: backbone\.pos_embed"),
        ({"threshold": "x"}, r"config\.json: threshold must be in \[0, 1\), got 'x'"),
        ({"threshold": 1.5}, r"config\.json: threshold must be in \[0, 1\), got 1.5"),
        (
            {"threshold": {"value": 0.2, "rule": "best"}},
            "threshold rule must be one of global, deviation, geometric, between, got 'best'",
        ),
        ({"threshold": {"value": 0.2, "interpolation": "area"}}, "one of cubic, linear, got 'area'"),
        ({"threshold": {"valu": 0.2}}, r"threshold must be in \[0, 1\), got \{'valu': 0.2\}"),
        ({"mean": [0.5, 0.5]}, r"mean\.2: field required"),
        ({"std": [0.5, 0, 0.5]}, r"std\.1: input should be greater than 0, got '0'"),
        (
            {"method": "scn"},
            "method must be one of cls, lctr, sat, scm, tscam, got 'scn'; did you mean 'scm'",
        ),
        ({"class_names": ["a"]}, "class_names must have 3 entries, one per class, got 1"),
        (
            {"backbone_options": SMALL | {"depth": 100_000}},
            "depth is 100000, but the weights beside it are of 2",
        ),
        ({"backbone_options": SMALL | {"embed_dim": 10**6}}, "embed_dim is 1000000, but .* of 48"),
        (
            {"backbone_options": SMALL | {"num_heads": 5}},
            "does not accept these options: dim should be divisible",
        ),
        ({"backbone_options": SMALL | {"colour": 5}}, "does not accept these options"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_config_that_was_edited_by_hand(tmp_path, change, message):
    model = create_model("deit_tiny_patch16_224", 3, "tscam", image_size=64, backbone_options=SMALL)
    config = save_model(model, tmp_path) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(InputError, match=message) as refused:
        load_model(tmp_path)
    assert "\n" not in str(refused.value)


def test_files_of_a_model_have_the_usual_permissions(tmp_path):
    model = create_model("deit_tiny_patch16_224", 3, "tscam", image_size=64, backbone_options=SMALL)
    before = os.umask(0o027)
    try:
        save_model(model, tmp_path / "model")
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "model").iterdir()} == {"0o640"}


@pytest.fixture(scope="module")
def weight_files():
    """Return what torch and safetensors write, as bytes by suffix; 40 kB of tensors."""
    tensors = {"a": torch.randn(100, 100), "b": torch.randn(10)}
    zipped, legacy = io.BytesIO(), io.BytesIO()
    torch.save(tensors, zipped)
    torch.save(tensors, legacy, _use_new_zipfile_serialization=False)
    return {
        "zip.pth": zipped.getvalue(),
        "legacy.pth": legacy.getvalue(),
        "a.safetensors": safetensors.torch.save(tensors),
    }


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
@pytest.mark.parametrize("name", ["zip.pth", "legacy.pth", "a.safetensors"])
def test_truncated_weights(tmp_path, weight_files, name, share):
    content = weight_files[name]
    (tmp_path / name).write_bytes(content)
    assert read_file(tmp_path / name).keys() == {"a", "b"}
    (tmp_path / name).write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InputError, match=f"{name}: this weight file is truncated"):
        read_file(tmp_path / name)


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
@pytest.mark.parametrize(
    "content", [b"", b"hello", b"<!DOCTYPE html><html>", b"PK\5\6" + bytes(18), bytes(100)]
)
def test_what_is_no_weight_file(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name}: this is not a weight file"):
        read_file(tmp_path / name)


def test_a_plain_pickle_is_no_weight_file(tmp_path):
    (tmp_path / "a.pth").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(InputError, match="this is not a weight file"):
        read_file(tmp_path / "a.pth")


class _Trap:
    def __reduce__(self):
        return print, ("this code was run",)


def test_code_in_a_file_is_not_run(tmp_path, capsys):
    torch.save({"state_dict": _Trap()}, tmp_path / "trap.pth")
    (tmp_path / "old.pth").write_bytes(pickle.dumps(_Trap(), protocol=2))
    (tmp_path / "protocol4.pth").write_bytes(pickle.dumps(_Trap(), protocol=4))
    for name in ("trap.pth", "old.pth", "protocol4.pth"):
        with pytest.raises(InputError, match=r"this file contains code.*, which is refused"):
            load_model(tmp_path / name)
        with pytest.raises(InputError, match=r"this file contains code.*, which is refused"):
            create_model("deit_tiny_patch16_224", 3, pretrained=tmp_path / name)
    assert "this code was run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrap", [lambda s: s, lambda s: {"model": s}, lambda s: {"state_dict": s, "epoch": 3}]
)
def test_pretrained_files_in_the_usual_wrappings(tmp_path, wrap):
    state = timm.create_model("deit_tiny_patch16_224").state_dict()
    torch.save(wrap(state), tmp_path / "weights.pth")
    model = create_model("deit_tiny_patch16_224", 1000, "cls", pretrained=tmp_path / "weights.pth")
    assert torch.equal(model.head.weight, state["head.weight"])
    assert torch.equal(model.backbone.blocks[3].attn.qkv.weight, state["blocks.3.attn.qkv.weight"])


def test_pretrained_classifier_of_another_size_is_dropped_with_a_notice(tmp_path, caplog):
    state = timm.create_model("deit_tiny_distilled_patch16_224").state_dict()
    safetensors.torch.save_file(state, tmp_path / "deit.safetensors")
    with caplog.at_level(logging.WARNING, "scm_fast"):
        create_model("deit_tiny_distilled_patch16_224", 200, "cls", pretrained=tmp_path / "deit.safetensors")
    assert "classifier head (1000, 192) is dropped, the model's is (200, 192)" in caplog.text


def test_pretrained_mismatch_lists_the_keys(tmp_path):
    state = timm.create_model("deit_tiny_patch16_224").state_dict()
    state["blocks.0.surprise"] = state.pop("blocks.0.norm1.weight")
    safetensors.torch.save_file(state, tmp_path / "deit.safetensors")
    with pytest.raises(
        InputError, match=r"missing.*blocks\.0\.norm1\.weight.*not in the model.*blocks\.0\.surprise"
    ):
        create_model("deit_tiny_patch16_224", 200, pretrained=tmp_path / "deit.safetensors")


def test_pretrained_position_embeddings_are_resampled_to_the_image_size(tmp_path):
    state = timm.create_model("deit_tiny_patch16_224").state_dict()
    safetensors.torch.save_file(state, tmp_path / "deit.safetensors")
    model = create_model(
        "deit_tiny_patch16_224", 200, pretrained=tmp_path / "deit.safetensors", image_size=(288, 320)
    )
    assert model.backbone.pos_embed.shape == (1, 1 + 18 * 20, 192)
    assert model.eval()(torch.randn(1, 3, 288, 320)).attention.shape == (1, 18, 20)


def test_numpy_numbers_beside_the_weights_are_read(tmp_path):
    torch.save({"best": np.float64(0.5), "best32": np.float32(0.25), "w": torch.ones(1)}, tmp_path / "a.pth")
    contents = read_file(tmp_path / "a.pth")
    assert (contents["best"], contents["best32"]) == (0.5, 0.25)
