"""Devices: which are supported, which is taken, and that a run says so."""

import logging

import pytest
import torch
from data_folders import write_cub

from scm_fast import InputError, Localizer, create_model, devices
from scm_fast.cli import main
from scm_fast.cli.train import train
from scm_fast.data import Preprocessing, build_evaluation_loader, open_dataset
from scm_fast.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from scm_fast.devices import amp_dtype, resolve_device, use_device
from scm_fast.training import make_config
from scm_fast.training.machine import machine_line

CPU = torch.device("cpu")
TINY = {
    "backbone": "vit_tiny_patch16_224",
    "backbone_options": {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
    "pretrained": False,
    "image_size": 32,
    "epochs": 1,
    "warmup_epochs": 0,
    "global_batch": 5,
    "workers": 0,
    "device": "cpu",
    "report": False,
}


@pytest.mark.parametrize("name", ["mps", "xpu", "mps:0", "meta"])
def test_other_devices_are_refused_in_a_sentence(name):
    with pytest.raises(InputError, match=f"device '{name}' is not supported: .* cpu, cuda or cuda:N"):
        resolve_device(name)
    with pytest.raises(InputError, match="is not supported"):
        Localizer(create_model("vit_tiny_patch16_224", 3, "cls"), torch.device(name))


def test_a_command_refuses_mps_in_a_line(tmp_path, capsys):
    assert main(["train", "--device", "mps", "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("scm-fast train: error: device 'mps' is not supported")


@pytest.fixture
def no_gpu_is_seen(monkeypatch, tmp_path):
    """A machine with a GPU's device file whose torch sees no GPU, and nobody hid it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "DEVICE_FILES", (tmp_path / "nvidia0",))
    (tmp_path / "nvidia0").touch()
    for name in devices.VISIBLE:
        monkeypatch.delenv(name, raising=False)
    devices._warn_of_an_unseen_gpu.cache_clear()
    yield
    devices._warn_of_an_unseen_gpu.cache_clear()


@pytest.mark.parametrize(
    ("cuda", "reason"), [("13.2", "driver may be too old"), (None, "built for the CPU alone")]
)
def test_a_gpu_that_torch_does_not_see_is_warned_of_once(no_gpu_is_seen, monkeypatch, caplog, cuda, reason):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", None)
    assert resolve_device(None) == resolve_device(None) == CPU
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "nvidia0" in record.getMessage()
    assert reason in record.getMessage()


def test_who_asks_for_the_cpu_or_hides_the_gpus_is_not_warned(no_gpu_is_seen, monkeypatch, caplog):
    resolve_device("cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    resolve_device(None)
    assert not caplog.records


def test_a_gpu_of_a_number_becomes_the_current_one(monkeypatch):
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert use_device("cuda:1") == torch.device("cuda:1")
    use_device("cuda")
    use_device("cpu")
    assert current == [torch.device("cuda:1")]


def test_precisions(monkeypatch):
    gpu = torch.device("cuda")
    for supported, expected in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda supported=supported, **_: supported)
        assert amp_dtype("auto", gpu) == expected
    assert amp_dtype("auto", CPU) is amp_dtype("none", gpu) is None
    with pytest.raises(InputError, match="amp must be one of auto, none, bf16, fp16, got 'half'"):
        amp_dtype("half", CPU)


def test_training_says_on_what_it_runs(tmp_path, capsys):
    data = str(write_cub(tmp_path / "CUB"))
    train(make_config({**TINY, "data": data, "out": str(tmp_path / "run")}, "test"))
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("running on cpu (")
    assert first.endswith(", float32, torch kernels")


def test_the_line_of_several_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr("scm_fast.distributed.world_size", lambda: 4)
    config = make_config({"amp": "bf16", "method": "tscam"}, "test")
    assert machine_line(config, torch.device("cuda:0")) == "running on 4 x cuda (Some GPU), bfloat16"


def test_copies_overlap_on_cuda_alone(tmp_path, monkeypatch):
    """A copy from memory that is not pinned, as on other devices, may read what has changed meanwhile."""
    asked = []
    whole = torch.Tensor.to

    def to(tensor, *arguments, **options):
        asked.append(options.get("non_blocking", False))
        return whole(tensor, *arguments, **options)

    dataset = open_dataset(write_cub(tmp_path / "CUB"), "val")
    loader = build_evaluation_loader(dataset, Preprocessing((32, 32)), batch_size=2, workers=0)
    monkeypatch.setattr(torch.Tensor, "to", to)
    next(iter(loader))
    assert asked
    assert not any(asked)


def test_normalising_makes_its_constants_once(monkeypatch):
    """Copying them to a GPU for each batch would wait for it."""
    images = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    preprocessing = Preprocessing((8, 8))
    first = preprocessing.normalize(images)
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (IMAGENET_MEAN, IMAGENET_STD))
    torch.testing.assert_close(first, (images / 255 - mean) / std)
    monkeypatch.setattr(torch, "tensor", None)
    assert torch.equal(preprocessing.normalize(images), first)
