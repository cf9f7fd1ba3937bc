"""The processes of a command, without starting any."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from scm_fast import InputError, distributed
from scm_fast.errors import LostProcess


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs, and the second of two processes; gives what was set and begun."""
    done = []
    for name, value in (("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2"), ("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", done.append)
    monkeypatch.setattr(distributed, "rendezvous", lambda address, timeout: iter([(dist.HashStore(), 1, 2)]))
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: done.append(backend))
    return done


@pytest.mark.parametrize("given", ["cuda", "auto"])
def test_each_process_takes_its_own_gpu(two_gpus, given):
    assert distributed.start_processes(given, 60) == torch.device("cuda:1")
    assert two_gpus == ["cuda:1", "cpu:gloo,cuda:nccl"]


@pytest.mark.parametrize("given", ["cuda:0", "cuda:1"])
def test_one_gpu_for_all_processes_is_refused(two_gpus, given):
    with pytest.raises(
        InputError, match=rf"--device {given}: 2 processes .* one GPU. Give --device cuda, and"
    ):
        distributed.start_processes(given, 60)
    assert two_gpus == []


def test_one_process_may_choose_its_gpu(two_gpus, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert distributed.start_processes("cuda:1", 60) == torch.device("cuda:1")
    assert two_gpus[0] == torch.device("cuda:1")  # the current one, which libraries take that are not told


def test_a_gpu_is_chosen_without_torchrun(two_gpus, monkeypatch):
    monkeypatch.delenv("LOCAL_RANK")
    assert distributed.start_processes("cuda:1", 60) == torch.device("cuda:1")
    assert two_gpus == [torch.device("cuda:1")]


def test_more_processes_than_gpus(two_gpus, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(InputError, match="process 2 of this machine has no GPU: there are 2"):
        distributed.start_processes("cuda", 60)


def test_without_torchrun():
    assert distributed.start_processes("cpu", 60) == torch.device("cpu")
    assert (distributed.rank(), distributed.world_size(), distributed.gather("x")) == (0, 1, ["x"])
    values = torch.tensor([1, 2.5])
    distributed.sum_over_processes(values)
    assert values.tolist() == [1.0, 2.5]


def _statistics_of_two(rank: int, store: str, found: dict) -> None:
    """Buffers of a batch norm in training, which sees other numbers in each process."""
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    norm = nn.BatchNorm1d(3)
    norm(torch.arange(12.0).reshape(4, 3) * (1 + rank))
    own = norm.running_mean.clone()
    distributed.copy_of_first(norm.buffers())
    found[rank] = own.tolist(), norm.running_mean.tolist(), norm.num_batches_tracked.item()
    dist.destroy_process_group()


def test_every_process_has_the_first_ones_statistics(tmp_path):
    with mp.Manager() as manager:
        shared = manager.dict()
        mp.spawn(_statistics_of_two, (f"file://{tmp_path}/store", shared), nprocs=2)
        found = dict(shared)
    assert found[0][0] != found[1][0]
    assert found[1][1:] == found[0][1:] == (found[0][0], 1)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (dist.DistBackendError("NCCL: remote process exited"), "NCCL: remote process exited"),
        (dist.DistStoreError("wait timeout after 5000ms, keys: /0"), "no answer within 5 s"),
        (
            RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer"),
            "Connection closed by peer",
        ),
        (
            RuntimeError("[gloo/unbound_buffer.cc:78] Timed out waiting 5000ms for recv"),
            "no answer within 5 s",
        ),
    ],
)
def test_an_exchange_that_fails_is_a_lost_process(error, lost):
    with pytest.raises(LostProcess, match=f"lost another one: .*{lost}"), distributed.processes("cpu", 5):
        raise error


def test_other_errors_are_left_alone():
    with pytest.raises(RuntimeError, match="mat1 and mat2"), distributed.processes("cpu", 5):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


@pytest.mark.parametrize("shares", ["True", "False"])
def test_machines_that_share_a_store_are_warned(two_gpus, monkeypatch, caplog, shares):
    monkeypatch.setattr(distributed, "rendezvous", lambda address, timeout: iter([(dist.HashStore(), 0, 2)]))
    for name, value in (("GROUP_WORLD_SIZE", "2"), ("MAX_RESTARTS", "3"), ("USE_AGENT_STORE", shares)):
        monkeypatch.setenv(name if name[0] == "G" else f"TORCHELASTIC_{name}", value)
    distributed.start_processes("cuda", 60)
    assert ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in caplog.text) == (shares == "True")
