"""Two real processes with DistributedDataParallel learn what one process learns from the whole batch."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from calibration_checks import random_maps
from torch import nn

from scm_fast import SpatialCalibration


class Head(nn.Module):
    """A semantic head and the calibration after it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(4, 6, 3, padding=1)
        self.scm = SpatialCalibration(2, 3)

    def forward(self, features: torch.Tensor, F: torch.Tensor) -> torch.Tensor:
        return self.scm(self.conv(features), F).logits


def loss_of(model: nn.Module, features: torch.Tensor, F: torch.Tensor) -> torch.Tensor:
    return model(features, F).logsumexp(1).mean()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    features, F = random_maps(4, 4, (5, 6))
    return features.float(), F.float()


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(Head())
    features, F = batch()
    loss_of(model, features[rank::2], F[rank::2]).backward()
    torch.save([p.grad for p in model.parameters()], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_equal_one(tmp_path):
    mp.spawn(work, (str(tmp_path),), nprocs=2)
    model = Head()
    loss_of(model, *batch()).backward()
    expected = [p.grad for p in model.parameters()]
    for rank in (0, 1):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt", weights_only=True), expected)
