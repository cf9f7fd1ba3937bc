"""python -m null_gpu.module: the calibration module in a CUDA graph, and what it takes of the host, as JSON."""

from __future__ import annotations

import json
import os
import time

import torch

from scm_fast import SpatialCalibration

from .device import counted


def step(scm: SpatialCalibration, S: torch.Tensor, F: torch.Tensor) -> None:
    scm(S, F).logits.sum().backward()


def host_microseconds(scm: SpatialCalibration, S: torch.Tensor, F: torch.Tensor) -> float:
    """Return the processor time of a forward and backward pass in this process; the quickest of some turns."""
    repeats, turns = 20, []
    for _ in range(10):
        begin = time.process_time()
        for _ in range(repeats):
            step(scm, S, F)
        turns.append((time.process_time() - begin) / repeats)
    return 1e6 * min(turns)


def main() -> dict:
    scm = SpatialCalibration().cuda()
    S = torch.zeros(8, 200, 14, 14, device="cuda", requires_grad=True)
    F = torch.zeros(8, 14, 14, device="cuda", requires_grad=True)
    step(scm, S, F)
    with counted() as eager:
        step(scm, S, F)
    graph = torch.cuda.CUDAGraph()
    with counted() as captured, torch.cuda.graph(graph):
        step(scm, S, F)
    with counted() as replayed:
        graph.replay()
    return {
        "eager": eager.counts,
        "captured": captured.counts,
        "replayed": replayed.counts,
        "host_microseconds": host_microseconds(scm, S, F),
    }


if __name__ == "__main__":
    print(json.dumps(main()), flush=True)
    os._exit(0)
