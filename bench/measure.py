"""Comparing implementations on a noisy machine: alternating rounds, medians, ratios within one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def peak_bytes(function: Callable[[], object]) -> int:
    """Bytes of tensors alive at once during the call, beyond those alive before it."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        function()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


def alternate(
    benchmark, functions: dict[str, Callable[[], object]], rounds: int
) -> dict[str, dict[str, float]]:
    """Median wall and CPU seconds and peak bytes of each function; they take turns in every round."""
    peaks = {name: peak_bytes(function) for name, function in functions.items()}  # warms up as well
    wall: dict[str, list[float]] = {name: [] for name in functions}
    cpu: dict[str, list[float]] = {name: [] for name in functions}

    def one_round() -> None:
        for name, function in functions.items():
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            function()
            wall[name].append(time.perf_counter() - wall_start)
            cpu[name].append(time.process_time() - cpu_start)

    benchmark.pedantic(one_round, rounds=rounds, iterations=1)
    results = {
        name: {
            "seconds": statistics.median(wall[name]),
            "cpu_seconds": statistics.median(cpu[name]),
            "peak_bytes": float(peaks[name]),
        }
        for name in functions
    }
    benchmark.extra_info.update(results)
    for name, result in results.items():
        memory = f"peak {result['peak_bytes'] / 2**20:.1f} MiB"
        print(
            f"\n{name:>10}: {result['seconds'] * 1e3:.2f} ms, {result['cpu_seconds'] * 1e3:.2f} CPU ms, {memory}",
            end="",
        )
    return results


def ratios(results: dict[str, dict[str, float]], name: str, base: str) -> dict[str, float]:
    """Every figure of `name` over that of `base`; printed as well."""
    found = {key: results[name][key] / max(results[base][key], 1e-12) for key in results[name]}
    print(f"\n{name} / {base}: " + ", ".join(f"{key} {value:.3f}x" for key, value in found.items()))
    return found
