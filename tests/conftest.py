"""Where kernels run: in Triton's interpreter on the CPU, or with `pytest -m gpu` compiled, on a GPU.

The interpreter replaces the compiler in a whole process, so one run of pytest has the one or the other.
"""

import os
import re
from collections.abc import Iterator

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: threads of several processes that wait for each other are slower than one each.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start


def pytest_configure(config: pytest.Config) -> None:
    """Before anything imports triton: `-m gpu`, alone or with other words, asks for compiled kernels."""
    expression = config.getoption("markexpr")
    if "gpu" not in re.findall(r"\w+", expression) or "not gpu" in expression:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    if _interpreted():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # torch.compile would interpret its kernels there, too


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    if _interpreted():
        pytest.skip("no GPU in this run, which interprets kernels; `pytest -m gpu` uses it")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """The device of a test's tensors; every test that takes it is a `gpu` test as well."""
    return request.param


@pytest.fixture
def poisoned_memory(device: str) -> Iterator[None]:
    """Uninitialised memory is NaN, so that a kernel that leaves a hole in its output is found out."""
    # On a GPU some operations that only the tests use have no deterministic form.
    torch.use_deterministic_algorithms(True, warn_only=device == "cuda")
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(8, device=device).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
