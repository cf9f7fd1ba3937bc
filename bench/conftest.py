"""`pytest bench/ --benchmark-only`: every benchmark of this folder, and one table of results at the end.

--device cuda      on the GPU (default: cpu)
--full             all shapes, and everything compiled; without it, at most 5 minutes on two quiet cores
--smoke            the smallest case of every file, one round, no limits: whether the benchmarks run at all
--results FILE     the table as CSV as well
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from measure import MIN_ROUNDS, CpuMeter, CudaMeter, Measured, Meter, NotRun, Task, measure

from scm_fast.benchmarks.table import (
    CPU_TIME,
    EAGER_TIME,
    PEAK_MEMORY,
    TIME,
    UNITS,
    WORKING_MEMORY,
    Case,
    Row,
    format_table,
    write_table,
)
from scm_fast.devices import resolve_device
from scm_fast.environment import commit, device_name, versions
from scm_fast.errors import InputError

# Seconds of rounds for each case, beyond the least number of them.
SECONDS, SECONDS_OF_FULL = 2.0, 20.0
ROWS = pytest.StashKey[list[Row]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("scm_fast benchmarks")
    group.addoption("--device", choices=["cpu", "cuda"], default="cpu", help="where to measure")
    group.addoption("--full", action="store_true", help="all shapes; takes hours on a CPU")
    group.addoption("--smoke", action="store_true", help="the smallest case of every file, one round")
    group.addoption("--results", type=Path, metavar="FILE.csv", help="write the table of results there")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: measured with --full only")
    config.stash[ROWS] = []
    # pytest-benchmark would show the sum of a case's rounds over all backends, which is nobody's time.
    config.option.benchmark_quiet = True
    try:
        resolve_device(config.option.device)
    except InputError as error:
        raise pytest.UsageError(f"--device: {error}") from None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.full:
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if config.option.smoke:
        left_out = [item for item in items if item not in _smallest_cases(items, left_out)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _smallest_cases(items: list[pytest.Item], left_out: list[pytest.Item]) -> list[pytest.Item]:
    """Return the smallest case (product of batch, classes, side) of the first test of every file."""
    found: dict[Path, pytest.Function] = {}
    for item in (item for item in items if item not in left_out):
        assert isinstance(item, pytest.Function)
        best = found.setdefault(item.path, item)
        if item.originalname == best.originalname and _size(item) < _size(best):
            found[item.path] = item
    return list(found.values())


def _size(item: pytest.Function) -> int:
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return math.prod(value for value in parameters if isinstance(value, int))


def pytest_sessionfinish(session: pytest.Session) -> None:
    rows, results = session.config.stash[ROWS], session.config.option.results
    if rows and results:
        write_table(results, rows)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash[ROWS]
    if not rows:
        return
    terminalreporter.section("benchmarks")
    devices = {row.device: None for row in rows if not row.not_run}
    terminalreporter.line(f"{'; '.join(devices)}; torch {rows[0].torch}; commit {rows[0].commit}")
    terminalreporter.line(
        "faster and smaller: against the reference (or the first of a case), round by round"
    )
    terminalreporter.line("")
    terminalreporter.line(format_table(rows))
    if config.option.results:
        terminalreporter.line(f"\nwritten to {config.option.results}")


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    return resolve_device(pytestconfig.option.device)


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    return pytestconfig.option.full


@pytest.fixture(scope="session")
def limits(pytestconfig: pytest.Config) -> bool:
    """Tell whether what was measured must reach what is promised: not after a single round."""
    return not pytestconfig.option.smoke


@pytest.fixture(scope="session")
def common_columns() -> dict[str, str]:
    """Columns of the table that are the same for the whole run."""
    found = versions()
    named = {name: found[name] or "" for name in ("python", "torch", "triton", "scm_fast")}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {**named, "commit": commit(), "date": today}


@pytest.fixture(scope="session")
def device_meter(device: torch.device) -> Meter:
    return CudaMeter() if device.type == "cuda" else CpuMeter()


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def compare(benchmark, pytestconfig, device, device_meter, common_columns) -> Callable[..., Measured]:
    """Measures the tasks of a case in turns, puts them into the table, and returns what was measured."""

    def run(
        case: Case,
        tasks: Mapping[str, Task | NotRun],
        base: str = "reference",
        metric: str = TIME,
        memory: bool = True,
        min_rounds: int = MIN_ROUNDS,
    ) -> Measured:
        on_host = metric == CPU_TIME
        meter = CpuMeter.of_processor_time() if on_host else device_meter
        ready = {name: task for name, task in tasks.items() if isinstance(task, Task)}
        baseline = base if base in ready else None
        seconds = SECONDS_OF_FULL if pytestconfig.option.full else SECONDS
        if pytestconfig.option.smoke:
            seconds, min_rounds = 0.0, 1
        measured = benchmark.pedantic(
            measure, (ready, meter, baseline, seconds, memory, min_rounds), rounds=1, iterations=1
        )
        where = device_name(torch.device("cpu") if on_host else device)
        rows = list(_rows(case, tasks, measured, baseline, metric, {**common_columns, "device": where}))
        pytestconfig.stash[ROWS] += rows
        benchmark.extra_info["results"] = format_table(rows).splitlines()
        return measured

    return run


def _rows(
    case: Case,
    tasks: Mapping[str, Task | NotRun],
    measured: Measured,
    base: str | None,
    metric: str,
    common: dict[str, str],
) -> Iterator[Row]:
    def row(backend: str, of: str, **columns: object) -> Row:
        return Row(**vars(case), backend=backend, metric=of, unit=UNITS[of], **columns, **common)

    def percentiles(prefix: str, values: np.ndarray) -> dict[str, float]:
        return {f"{prefix}p{p}": float(np.percentile(values, p)) for p in (20, 50, 80)}

    for name, task in tasks.items():
        if isinstance(task, NotRun):
            yield row(name, metric, not_run=task.reason)
            continue
        compared = base is not None and name != base
        ratios = percentiles("ratio_", measured.ratios(base, name)) if compared else {}
        seconds = measured.seconds[name]
        yield row(name, metric, **percentiles("", seconds), rounds=len(seconds), against=base or "", **ratios)
        if name in measured.eager_seconds:
            eager = measured.eager_seconds[name]
            ratios = percentiles("ratio_", measured.eager_ratios(base, name)) if compared else {}
            spread = percentiles("", eager)
            yield row(name, EAGER_TIME, **spread, rounds=len(eager), against=base or "", **ratios)
        for of, counted in ((PEAK_MEMORY, measured.peak_bytes), (WORKING_MEMORY, measured.working_bytes)):
            if name in counted:
                value = np.array(counted[name], dtype=float)
                ratios = percentiles("ratio_", counted[base] / value) if compared and value > 0 else {}
                yield row(name, of, **percentiles("", value), rounds=1, against=base or "", **ratios)
