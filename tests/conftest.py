"""Kernels run on the GPU where there is one, elsewhere in Triton's interpreter on the CPU."""

import os
from collections.abc import Iterator

import pytest
import torch

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
