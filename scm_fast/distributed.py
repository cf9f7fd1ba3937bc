"""The processes of a command: this one alone, or all that torchrun started."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import re
import socket
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from .devices import use_device
from .errors import TIMEOUT, InputError, LostProcess


@contextlib.contextmanager
def processes(device: str, timeout: float = TIMEOUT) -> Iterator[torch.device]:
    """Let this process work with the others that torchrun started, if it did; gives its device.

    Raises LostProcess when another one has died, or has not answered for `timeout` seconds.
    """
    try:
        yield start_processes(device, timeout)
        if dist.is_initialized():
            dist.destroy_process_group()
    except RuntimeError as error:
        # NCCL and the store have errors of their own; gloo's are known by the names of its files.
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        place = (
            f"process {os.environ.get('RANK')} of {os.environ.get('WORLD_SIZE')} on {socket.gethostname()}"
        )
        cause = str(error).splitlines()[0]
        if re.search("timed out|timeout", cause, re.I):
            cause = f"no answer within {timeout:g} s"
        raise LostProcess(f"{place} lost another one: {cause}") from error


def start_processes(device: str, timeout: float) -> torch.device:
    """Join the other processes if torchrun started this one; gives the device of this process."""
    if "LOCAL_RANK" in os.environ and device.startswith("cuda:"):
        _refuse_one_gpu_for_all(device)
    device = str(use_device(None if device == "auto" else device))
    if "LOCAL_RANK" not in os.environ:
        return torch.device(device)
    if device == "cuda":
        local = int(os.environ["LOCAL_RANK"])
        if local >= torch.cuda.device_count():
            raise InputError(
                f"process {local} of this machine has no GPU: there are {torch.cuda.device_count()}, "
                f"--nproc-per-node is {os.environ.get('LOCAL_WORLD_SIZE')}"
            )
        device = f"cuda:{local}"
        torch.cuda.set_device(device)
    # gloo beside NCCL carries what is on the CPU: random states, file names, tables of the evaluation.
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    limit = datetime.timedelta(seconds=timeout)
    store, rank, world = next(iter(rendezvous("env://", timeout=limit)))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # After a restart torchrun's store still has the addresses of the processes that died, and whoever reads
        # before the others have written would call those. So each attempt has names of its own.
        store = dist.PrefixStore(f"attempt {restarts()}", store)
        _warn_of_machines_that_count_for_themselves(rank)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
    return torch.device(device)


def _warn_of_machines_that_count_for_themselves(rank: int) -> None:
    """A machine that comes back counts its restarts from 0, and does not find the others in their store."""
    if (
        rank == 0
        and int(os.environ["GROUP_WORLD_SIZE"]) > 1
        and os.environ["TORCHELASTIC_MAX_RESTARTS"] != "0"
    ):
        logging.getLogger("scm_fast").warning(
            "torchrun cannot restart several machines that share its store: export "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 first (docs/training.md)"
        )


def _refuse_one_gpu_for_all(device: str) -> None:
    count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if count > 1:
        raise InputError(
            f"--device {device}: {count} processes of this machine would share one GPU. Give --device cuda, and "
            "each takes its own; CUDA_VISIBLE_DEVICES=2,3 chooses among them"
        )


def restarts() -> int:
    """Return how often torchrun has started this process again; each machine counts for itself."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def is_first() -> bool:
    return rank() == 0


def gather(value: Any) -> list[Any]:
    """The values of all processes, in every process."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def on_first(function: Any, *arguments: Any) -> Any:
    """Return what the function gives in the first process; its InputError, if any, is raised in all of them."""
    result: Any = None
    if is_first():
        try:
            result = function(*arguments)
        except (InputError, OSError) as error:
            result = InputError(str(error))
    if dist.is_initialized():
        box = [result]
        dist.broadcast_object_list(box, src=0)
        result = box[0]
    if isinstance(result, InputError):
        raise result
    return result


def copy_of_first(tensors: Iterable[torch.Tensor]) -> None:
    """Give every process the first one's tensors, in place."""
    if world_size() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)


def mean_over_images(mean: torch.Tensor, images: int) -> torch.Tensor:
    """The mean over the images of all processes, given this one's, for a loss that is not linear in it.

    Its gradient is that of the process's own mean: the training step weights the processes by their images.
    """
    if world_size() == 1:
        return mean
    total = torch.stack([mean.detach() * images, mean.new_full((), images)])
    dist.all_reduce(total)
    return mean + (total[0] / total[1] - mean).detach()


def sum_over_processes(values: torch.Tensor) -> None:
    """Add up the values of all processes, in place; a GPU is not waited for."""
    if dist.is_initialized():
        dist.all_reduce(values)
