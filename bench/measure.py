"""Measure time and memory: tasks take turns in rounds, and every round has its own ratios.

A machine that is busy for a while slows all tasks of a round, so the ratio of two tasks within a round moves
much less than either time. On the CPU the clock is `perf_counter` (or processor time), and memory is counted
by the profiler; on CUDA, events on the stream after a flush of the L2 cache, and the allocator's peak.

On CUDA there are two times. That of the kernels is taken with all launches in the queue before the first of them
may start: of a step of few small kernels, the host's time to launch them would otherwise be all that is seen. The
eager time has the host in it, as a program without CUDA graphs has.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

MIN_ROUNDS, MAX_ROUNDS = 5, 100
# On the CPU a turn lasts so many seconds at least: a short task runs several times, and their mean counts. Other
# processes interrupt for up to some 30 ms, which would be all or nothing for a task of a millisecond.
TURN, MAX_REPEATS = 0.06, 1000
# Rounds go on until the median ratios are known to about this fraction, or the time for the case is over.
PRECISION = 0.02
# Cycles that a GPU is kept busy while launches are queued: at first, and at most (about a second).
FIRST_SPIN, LAST_SPIN = 2**20, 2**31
# More than any GPU's L2 cache.
FLUSH_BYTES = 512 * 2**20


@dataclasses.dataclass(frozen=True)
class Task:
    """A task: `run` is timed, on what `prepare` returns, made afresh each time and not timed."""

    run: Callable[[object], object]
    prepare: Callable[[], object] = lambda: None


@dataclasses.dataclass(frozen=True)
class NotRun:
    """Stands where a task would, with the reason why there is none."""

    reason: str


class CpuMeter:
    """Seconds, by the wall clock or of the processor, and bytes on the CPU."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock

    @classmethod
    def of_processor_time(cls) -> CpuMeter:
        """Counts the seconds of this process's threads alone, whatever else the machine does."""
        return cls(time.process_time)

    def repeats(self, task: Task) -> int:
        """Return how often the task runs in a turn."""
        shortest = self.seconds(task, 1)
        if shortest < TURN:  # it may have been interrupted
            shortest = min(shortest, self.seconds(task, 1))
        return math.ceil(min(TURN / max(shortest, 1e-9), MAX_REPEATS))

    def seconds(self, task: Task, repeats: int) -> float:
        """The mean of one turn."""
        total = 0.0
        for _ in range(repeats):
            given = task.prepare()
            start = self.clock()
            result = task.run(given)
            total += self.clock() - start
            del result  # freeing it is not part of the work
        return total / repeats

    def eager_seconds(self, task: Task) -> float | None:
        return None  # there is no other time on the CPU

    def peak_bytes(self, task: Task) -> tuple[int, int]:
        """Bytes of tensors alive at once beyond those alive before `run`, and those of what it returns."""
        given = task.prepare()
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            result = task.run(given)
        events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        alive = peak = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            alive += event.nbytes()
            peak = max(peak, alive)
        return peak, returned_bytes(result)


class CudaMeter:
    """Seconds and bytes on the current CUDA or ROCm device."""

    def __init__(self) -> None:
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def repeats(self, task: Task) -> int:
        return 1  # nothing interrupts a kernel, and a second run would find the cache filled

    def seconds(self, task: Task, repeats: int) -> float:
        """Return the kernels' time alone, with the host's time where a task waits for the GPU itself."""
        spin = FIRST_SPIN
        while True:
            seconds, queued_in_time = self._timed(task, spin)
            if queued_in_time or spin >= LAST_SPIN:
                return seconds
            spin *= 4

    def eager_seconds(self, task: Task) -> float | None:
        """Return the time of the kernels and of the host, which launches them while they run."""
        return self._timed(task, 0)[0]

    def _timed(self, task: Task, spin: int) -> tuple[float, bool]:
        """Seconds, and whether the host had launched everything before the GPU began with it."""
        given = task.prepare()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.zero_()  # what the previous task left in the cache is gone
        if spin:
            torch.cuda._sleep(spin)
        start.record()
        result = task.run(given)
        end.record()
        queued_in_time = not start.query()
        torch.cuda.synchronize()
        del result
        return start.elapsed_time(end) / 1e3, queued_in_time

    def peak_bytes(self, task: Task) -> tuple[int, int]:
        given = task.prepare()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = task.run(given)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, returned_bytes(result)


Meter = CpuMeter | CudaMeter


def returned_bytes(result: object) -> int:
    """Bytes of the tensors in what a task returns: a tensor, or a tuple or list of them."""
    if isinstance(result, torch.Tensor):
        return result.nbytes
    return sum(map(returned_bytes, result)) if isinstance(result, tuple | list) else 0


@dataclasses.dataclass(frozen=True)
class Measured:
    """Seconds of every round by task, in the order of the rounds, and bytes where they were counted."""

    seconds: dict[str, np.ndarray]  # each (rounds,)
    eager_seconds: dict[str, np.ndarray]  # on a GPU
    peak_bytes: dict[str, int]
    working_bytes: dict[str, int]  # the peak without what the task returns

    def ratios(self, name: str, base: str) -> np.ndarray:
        """Return for every round what `name` took over what `base` took."""
        return self.seconds[name] / self.seconds[base]

    def eager_ratios(self, name: str, base: str) -> np.ndarray:
        return self.eager_seconds[name] / self.eager_seconds[base]

    def ratio(self, name: str, base: str) -> float:
        return float(np.median(self.ratios(name, base)))


def measure(
    tasks: Mapping[str, Task],
    meter: Meter,
    base: str | None,
    seconds: float,
    memory: bool = True,
    min_rounds: int = MIN_ROUNDS,
) -> Measured:
    """Rounds of all tasks in turn, for about `seconds` at most but never fewer than `min_rounds`.

    Every task must have run before: the first call of anything is not like the others.
    """
    peaks = {name: meter.peak_bytes(task) for name, task in tasks.items()} if memory else {}
    repeats = {name: meter.repeats(task) for name, task in tasks.items()}
    rounds: dict[str, list[float]] = {name: [] for name in tasks}
    eager: dict[str, list[float]] = {name: [] for name in tasks}
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        for count in range(1, MAX_ROUNDS + 1):
            for name, task in tasks.items():
                rounds[name].append(meter.seconds(task, repeats[name]))
                if (seconds_of_eager := meter.eager_seconds(task)) is not None:
                    eager[name].append(seconds_of_eager)
            if count >= min_rounds and (time.perf_counter() >= end or settled(rounds, base)):
                break
    finally:
        gc.enable()
    return Measured(
        {name: np.array(values) for name, values in rounds.items()},
        {name: np.array(values) for name, values in eager.items() if values},
        {name: peak for name, (peak, _) in peaks.items()},
        {name: max(peak - returned, 0) for name, (peak, returned) in peaks.items()},
    )


def settled(rounds: Mapping[str, list[float]], base: str | None) -> bool:
    """Tell whether every median ratio to `base` (without one: every median time) is known to PRECISION.

    The standard error of a median of n values is 1.25 sigma / sqrt(n), and in a normal distribution the 20th
    and 80th percentile are 1.68 sigma apart.
    """
    for name, values in rounds.items():
        if name == base:
            continue
        compared = np.array(values) / np.array(rounds[base]) if base is not None else np.array(values)
        low, middle, high = np.quantile(compared, (0.2, 0.5, 0.8))
        if 1.25 * (high - low) / 1.68 > PRECISION * middle * len(compared) ** 0.5:
            return False
    return True
