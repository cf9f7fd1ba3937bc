"""Show versions, devices, backends and caches: paste it into a bug report.

  scm-fast info           versions, devices, backends, caches, environment variables
  scm-fast info --json    the same for programs

"auto" shows the default backend of every op on this machine's best device, with the reason. Choose another
one by argument (`SpatialCalibration(backend="torch")`), by context (`with scm_fast.use_backend("torch"):`) or
with the environment variable SCM_FAST_BACKEND. Only environment variables of torch, triton, CUDA, ROCm and
the caches are shown.
"""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(args: argparse.Namespace) -> int:
    from ..environment import describe

    found = describe()
    print(json.dumps(found, indent=2) if args.json else _text(found))
    return 0


def _text(found: dict[str, Any]) -> str:
    sections = {
        "versions": {name: version or "none" for name, version in found["versions"].items()},
        "devices": {device["device"]: _device(device) for device in found["devices"]},
        "backends": {name: reason or "can serve" for name, reason in found["backends"].items()},
        "auto": {op: f"{choice['backend']}: {choice['why']}" for op, choice in found["auto"].items()},
        "caches": found["caches"],
        "environment": found["environment"] or {"": "no variable set that matters"},
    }
    lines = []
    for title, rows in sections.items():
        width = max(map(len, rows))
        lines += [title, *(f"  {name:<{width}}  {value}".rstrip() for name, value in rows.items()), ""]
    return "\n".join(lines[:-1])


def _device(device: dict[str, Any]) -> str:
    parts = [device["name"]]
    if device["memory"]:
        parts.append(f"{device['memory'] / 2**30:.1f} GiB")
    others = (key for key in device if key not in ("device", "name", "memory"))
    return ", ".join([*parts, *(f"{key} {device[key]}" for key in others)])
