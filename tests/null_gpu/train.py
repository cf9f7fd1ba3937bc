"""python -m null_gpu.train CASES.json: trainings on the null GPU, with values; what they waited for, as JSON.

CASES.json has a configuration for each name. Counted are the steps of the epochs, and the validations apart. With
the environment of torchrun, the process is one of several.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from scm_fast import distributed
from scm_fast.training import Trainer, make_config

from .device import counted
from .values import Values

_PARTS = ("train_epoch", "validate_epoch")
forks = 0


def count_forks() -> None:
    fork = os.fork

    def counting() -> int:
        global forks
        forks += 1
        return fork()

    os.fork = counting


def run(config: dict[str, Any], device: torch.device) -> dict[str, Any]:
    trainer = Trainer(make_config(config, "test"), device)
    waits: dict[str, Counter[str]] = {part: Counter() for part in _PARTS}
    forked = dict.fromkeys(_PARTS, 0)
    collectives: Counter[str] = Counter()

    def watched(part: str) -> Any:
        method = getattr(trainer, part)

        def call() -> Any:
            before = forks
            with counted() as work:
                result = method()
            waits[part] += work.waits_at
            forked[part] += forks - before
            collectives.update({name: n for name, n in work.kernels.items() if name.startswith("nccl")})
            return result

        return call

    for part in _PARTS:
        setattr(trainer, part, watched(part))
    trainer.fit()
    return {
        "steps": trainer.step,
        "waits": waits,
        "forks": forked,
        "collectives": collectives,
        "devices": sorted({str(parameter.device) for parameter in trainer.model.parameters()}),
        "log": (Path(config["out"]) / "steps.csv").read_text().splitlines(),
    }


if __name__ == "__main__":
    count_forks()
    cases = json.loads(Path(sys.argv[1]).read_text())
    found = {}
    with Values():
        for name, config in cases.items():
            with distributed.processes(config["device"]) as device:
                found[name] = run(config, device)
    print(json.dumps(found), flush=True)
    os._exit(0)  # the libraries' own ends would meet a device that they never had
