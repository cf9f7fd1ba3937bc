"""python -m null_gpu.steps MODEL BATCH METHOD ...: launches and waits of a training step, as JSON by method.

A step is the forward pass in bfloat16, the backward pass and AdamW, as the trainer makes them of one micro-batch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from scm_fast import create_model

from .device import Work, counted


def measure(name: str, batch: int, method: str) -> dict:
    torch.manual_seed(0)
    model = create_model(name, 200, method).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    images = torch.randn(batch, 3, *model.config.image_size, device="cuda")
    labels = torch.zeros(batch, dtype=torch.long, device="cuda")

    def loss() -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits, terms = model(images)
        return F.cross_entropy(logits.float(), labels) + sum(terms.values())

    def step() -> dict[str, Work]:
        with counted() as forward:
            value = loss()
        with counted() as backward:
            value.backward()
        with counted() as update:
            optimizer.step()
            optimizer.zero_grad()
        return {"forward": forward, "backward": backward, "update": update}

    step()  # the first one compiles, and makes the optimiser's state
    parts = step()
    found = {
        part: {"launches": work.launches, "waits": dict(work.waits_at), "kernels": dict(work.kernels)}
        for part, work in parts.items()
    }
    return {"parts": found, "host_ms": host_milliseconds(lambda: loss().backward())}


def host_milliseconds(run: Callable[[], object], turns: int = 5) -> float:
    """Return the processor's time, by the quickest of some turns."""
    taken = []
    for _ in range(turns):
        begin = time.process_time()
        run()
        taken.append(1e3 * (time.process_time() - begin))
    return min(taken)


if __name__ == "__main__":
    name, batch, *methods = sys.argv[1:]
    print(json.dumps({method: measure(name, int(batch), method) for method in methods}), flush=True)
    os._exit(0)  # the libraries' own ends would meet a device that they never had
