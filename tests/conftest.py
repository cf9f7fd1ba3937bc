"""Kernels run on the GPU where there is one, elsewhere in Triton's interpreter on the CPU."""

import os
from collections.abc import Iterator

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: threads of several processes that wait for each other are slower than one each.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Uninitialised memory is NaN, so that a kernel that leaves a hole in its output is found out."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(8).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
