"""Models go to a folder or to a hub and come back the same: `from_pretrained`, `save_pretrained`, `push_to_hub`."""

import os
import subprocess
import sys

import pytest
import torch
from fake_hub import running

from scm_fast import InputError, LocalizationModel, create_model, load_model, save_model
from scm_fast.threshold import Threshold

SMALL = {"depth": 1, "embed_dim": 48, "num_heads": 3}


def make(**options):
    torch.manual_seed(0)
    names = ["crane", "owl", "wren"]
    small = {"image_size": 64, "class_names": names, "backbone_options": SMALL}
    return create_model("deit_tiny_patch16_224", 3, **small, **options).eval()


@pytest.mark.parametrize("method", ["scm", "cls", "tscam"])
def test_a_folder_gives_the_model_back(method, tmp_path):
    model = make(method=method)
    model.config.threshold = Threshold(0.3)
    model.save_pretrained(tmp_path / "birds")
    assert sorted(os.listdir(tmp_path / "birds")) == ["README.md", "config.json", "model.safetensors"]
    loaded = LocalizationModel.from_pretrained(tmp_path / "birds")
    assert loaded.config == model.config
    assert not loaded.training
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(loaded(images), model(images), rtol=0, atol=0)
    assert load_model(tmp_path / "birds").config == model.config
    assert LocalizationModel.from_pretrained(tmp_path / "birds", image_size=96).config.image_size == (96, 96)


def test_what_save_model_wrote_is_read(tmp_path):
    model = make()
    assert LocalizationModel.from_pretrained(save_model(model, tmp_path)).config == model.config


PUSH = """
import sys
import scm_fast
model = scm_fast.load_model(sys.argv[1])
print(model.push_to_hub("user/birds", commit_message="Three birds", private=True))
"""
PULL = """
import sys, torch, scm_fast
model = scm_fast.LocalizationModel.from_pretrained("user/birds", revision="main")
own = scm_fast.load_model(sys.argv[1])
assert model.config == own.config
for name, value in own.state_dict().items():
    assert torch.equal(model.state_dict()[name], value), name
try:
    scm_fast.LocalizationModel.from_pretrained("user/none")
except scm_fast.InputError as error:
    print(error)
"""


def in_process(code, hub, tmp_path, *arguments):
    """Return the output of a Python process that knows no other hub than this one."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_TOKEN": "fake",
    }
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_hub_gives_the_model_back(tmp_path):
    folder = save_model(make(), tmp_path / "birds")
    with running() as hub:
        assert "user/birds" in in_process(PUSH, hub, tmp_path, folder)
        pushed = hub.files["user/birds"]
        assert set(pushed) == {"README.md", "config.json", "model.safetensors"}
        assert pushed["model.safetensors"] == (folder / "model.safetensors").read_bytes()
        card = pushed["README.md"].decode()
        assert "library_name: scm-fast" in card
        assert 'LocalizationModel.from_pretrained("user/birds")' in card
        said = in_process(PULL, hub, tmp_path, folder)
        assert said.startswith("user/none: no such folder, and not to be had from the hub (")


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(
        InputError, match=r"a checkpoint is a folder with config\.json and model\.safetensors"
    ):
        LocalizationModel.from_pretrained(tmp_path)
