"""Checkpoints: what is saved comes back, published files load, and nothing in a file is executed."""

import json
import logging
import pickle

import numpy as np
import pytest
import safetensors.torch
import timm
import torch

from scm_fast import InputError, create_model, load_model, save_model
from scm_fast.models.weights import read_file

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
    model.config.threshold = 0.35
    folder = save_model(model, tmp_path / "run" / "checkpoint")
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    for path in (folder, folder / "model.safetensors"):
        loaded = load_model(path)
        assert not loaded.training
        same_evaluation(loaded, model, (64, 96))
        assert json.dumps(vars(loaded.config)) == json.dumps(vars(model.config))
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
    with pytest.raises(InputError, match=r"text\.pth: cannot be read as weights"):
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
    config.write_text(json.dumps(values | {"num_classes": 4}))
    with pytest.raises(InputError, match=r"2 of another shape: head\.bias \(file \(3,\), model \(4,\)\)"):
        load_model(tmp_path)


class _Trap:
    def __reduce__(self):
        return print, ("this code was run",)


def test_code_in_a_file_is_not_run(tmp_path, capsys):
    torch.save({"state_dict": _Trap()}, tmp_path / "trap.pth")
    (tmp_path / "old.pth").write_bytes(pickle.dumps(_Trap(), protocol=2))
    for name in ("trap.pth", "old.pth"):
        with pytest.raises(InputError, match="cannot be read as weights"):
            load_model(tmp_path / name)
        with pytest.raises(InputError, match="cannot be read as weights"):
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
