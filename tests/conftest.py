"""Where kernels run: in Triton's interpreter on the CPU, or compiled: on a GPU, or emulated (tests/ptx).

    pytest                                  interpreted
    pytest -m compiled [--targets all]      the tests marked `kernels`, compiled for GPU targets and emulated
    pytest -m gpu                           compiled, on the GPU of this machine

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


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "with -m compiled: GPU targets, separated by commas, or `all` (default: %(default)s)"
    parser.addoption("--targets", default="sm_80,sm_90", help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    """Before anything imports triton: `-m gpu` or `-m compiled`, alone or with other words, compile kernels."""
    if not _asked_for(config, "gpu") and not _asked_for(config, "compiled"):
        os.environ.setdefault("TRITON_INTERPRET", "1")
    if _interpreted():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # torch.compile would interpret its kernels there, too


def _asked_for(config: pytest.Config, marker: str) -> bool:
    expression = config.getoption("markexpr")
    return marker in re.findall(r"\w+", expression) and f"not {marker}" not in expression


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    if _interpreted():
        pytest.skip("no GPU in this run, which interprets kernels; `pytest -m gpu` uses it")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a `device` is a `gpu` test as well; one marked `kernels`, a `compiled` test for every target."""
    if "device" not in metafunc.fixturenames:
        return
    devices = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
    if _asked_for(metafunc.config, "compiled") and metafunc.definition.get_closest_marker("kernels"):
        from ptx.driver import TARGETS  # which imports triton

        targets = metafunc.config.getoption("targets")
        for target in TARGETS if targets == "all" else targets.split(","):
            devices.append(pytest.param(target, marks=pytest.mark.compiled))
    metafunc.parametrize("device", devices, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only the triton backend has kernels to compile."""
    compiled = {item for item in items if item.get_closest_marker("compiled")}
    idle = {i for i in compiled if hasattr(i, "callspec") and i.callspec.params.get("backend", "triton") != "triton"}
    if idle:
        config.hook.pytest_deselected(items=[item for item in items if item in idle])
        items[:] = [item for item in items if item not in idle]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of a test's tensors. Emulated kernels work on tensors of the CPU."""
    if request.param in ("cpu", "cuda"):
        yield request.param
        return
    from ptx.driver import emulated

    with emulated(request.param) as emulator:
        yield "cpu"
    assert emulator.launched, "no kernel was launched"


@pytest.fixture
def poisoned_memory(device: str) -> Iterator[None]:
    """Uninitialised memory is NaN, so that a kernel that leaves a hole in its output is found out."""
    # On a GPU some operations that only the tests use have no deterministic form.
    torch.use_deterministic_algorithms(True, warn_only=device == "cuda")
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(8, device=device).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
