"""python -m null_gpu.check_values METHOD ...: losses of training steps on the CPU and on the null GPU, as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys

import torch
import torch.nn.functional as F

from scm_fast import create_model

from .values import Values


def losses(method: str, place: str, steps: int = 3) -> list[float]:
    torch.manual_seed(0)
    options = {"depth": 3, "embed_dim": 48, "num_heads": 3}
    model = create_model("deit_tiny_patch16_224", 7, method, image_size=64, backbone_options=options)
    generator, found = torch.Generator().manual_seed(1), []
    with Values() if place == "cuda" else contextlib.nullcontext():
        model.train().to(place)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(steps):
            images = torch.randn(4, 3, 64, 64, generator=generator).to(place)
            labels = torch.randint(0, 7, (4,), generator=generator).to(place)
            logits, terms = model(images)
            loss = F.cross_entropy(logits, labels) + sum(terms.values())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
    return found


if __name__ == "__main__":
    found = {method: [losses(method, place) for place in ("cpu", "cuda")] for method in sys.argv[1:]}
    print(json.dumps(found), flush=True)
    os._exit(0)
