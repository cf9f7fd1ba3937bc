"""Choose where kernels run: in Triton's interpreter on the CPU, compiled on a GPU, or emulated (tests/ptx).

    pytest                                  interpreted
    pytest -m compiled [--targets all]      compiled for GPU targets, in the emulator
    pytest -m gpu                           compiled, on the GPU of this machine

The interpreter replaces the compiler in a whole process, so one run of pytest has the one or the other.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
import torch

from scm_fast import InputError
from scm_fast.backends import why_no_kernels

PINNED_TIMM = re.search(r"^timm==(.+)$", (Path(__file__).parents[1] / "constraints.txt").read_text(), re.M)[1]

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: threads of several processes that wait for each other are slower than one each.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "with -m compiled: GPU targets, separated by commas, or `all` (default: %(default)s)"
    parser.addoption("--targets", default="sm_80,sm_90", help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    """Run before anything imports triton: `-m gpu` or `-m compiled`, alone or with other words, compile kernels."""
    # A shell has SIGINT ignored in what it runs in the background, and Ctrl-C is tested there, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if parameters.get("backend") == "triton" and (reason := why_no_kernels()):
        pytest.skip(reason)
    if item.get_closest_marker("one_graph") and torch.__version__.startswith("2.6."):
        pytest.skip("torch.compile breaks the graph at a ContextVar before PyTorch 2.7")
    if item.get_closest_marker("gpu") is None:
        return
    if _interpreted():
        pytest.skip("no GPU in this run, which interprets kernels; `pytest -m gpu` uses it")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Skip tests of what the oldest timm and Triton do not have yet; the pinned ones must have all."""
    try:
        return (yield)
    except InputError as error:
        if "is not a model of timm" in str(error) and metadata.version("timm") != PINNED_TIMM:
            pytest.skip(str(error))
        if (reason := why_no_kernels()) and reason in str(error):
            pytest.skip(reason)
        raise


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a `device` is a `gpu` test and a `compiled` test for every target as well."""
    if "device" not in metafunc.fixturenames:
        return
    devices: list = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
    if _asked_for(metafunc.config, "compiled"):
        from ptx.driver import TARGETS  # which imports triton

        targets = metafunc.config.getoption("targets")
        targets = TARGETS if targets == "all" else targets.split(",")
        devices += [pytest.param(target, marks=pytest.mark.compiled) for target in targets]
    metafunc.parametrize("device", devices, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has no kernels to compile, and everything compiled where that was not asked for."""
    chosen = [item for item in items if not item.get_closest_marker("compiled") or _to_compile(config, item)]
    config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
    items[:] = chosen


def _to_compile(config: pytest.Config, item: pytest.Item) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    has_kernels = parameters.get("backend", "triton") == "triton" and not item.get_closest_marker(
        "not_compiled"
    )
    return has_kernels and _asked_for(config, "compiled")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of a test's tensors. Emulated kernels work on tensors of the CPU."""
    if request.param in ("cpu", "cuda"):
        yield request.param
        return
    from ptx.driver import emulated

    with emulated(request.param) as emulator:
        yield "cpu"
    assert emulator.launched, "no kernel was launched: mark the test not_compiled"


@pytest.fixture
def poisoned_memory(device: str) -> Iterator[None]:
    """Uninitialised memory is NaN, so that a kernel that leaves a hole in its output is found out."""
    # On a GPU some operations that only the tests use have no deterministic form.
    torch.use_deterministic_algorithms(True, warn_only=device == "cuda")
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(8, device=device).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def launched() -> Iterator[Callable[[], set[str]]]:
    """Names of the kernels that the test has launched so far; empty where there are no kernels."""
    if why_no_kernels():
        yield set
        return
    from kernel_launches import recorded_launches

    with recorded_launches(run=True) as launches:
        yield lambda: {launch.name for launch in launches}
