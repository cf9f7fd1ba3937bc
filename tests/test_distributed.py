"""The processes of a command, without starting any."""

import pytest
import torch
import torch.distributed as dist

from scm_fast import InputError, distributed


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs, and the second of two processes; gives what was set and begun."""
    done = []
    for name, value in (("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2"), ("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", done.append)
    monkeypatch.setattr(distributed, "rendezvous", lambda address: iter([(dist.HashStore(), 1, 2)]))
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: done.append(backend))
    return done


@pytest.mark.parametrize("given", ["cuda", "auto"])
def test_each_process_takes_its_own_gpu(two_gpus, given):
    assert distributed.start_processes(given) == torch.device("cuda:1")
    assert two_gpus == ["cuda:1", "cpu:gloo,cuda:nccl"]


@pytest.mark.parametrize("given", ["cuda:0", "cuda:1"])
def test_one_gpu_for_all_processes_is_refused(two_gpus, given):
    with pytest.raises(
        InputError, match=rf"--device {given}: 2 processes .* one GPU. Give --device cuda, and"
    ):
        distributed.start_processes(given)
    assert two_gpus == []


def test_one_process_may_choose_its_gpu(two_gpus, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert distributed.start_processes("cuda:0") == torch.device("cuda:0")


def test_more_processes_than_gpus(two_gpus, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(InputError, match="process 2 of this machine has no GPU: there are 2"):
        distributed.start_processes("cuda")


def test_without_torchrun():
    assert distributed.start_processes("cpu") == torch.device("cpu")
    assert (distributed.rank(), distributed.world_size(), distributed.gather("x")) == (0, 1, ["x"])
    assert distributed.sum_over_processes(1, 2.5) == [1.0, 2.5]
