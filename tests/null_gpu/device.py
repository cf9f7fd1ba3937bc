"""The null GPU seen from a process that runs on it: what was launched, copied and waited for."""

from __future__ import annotations

import contextlib
import ctypes
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

LAUNCHES = ("launch", "library", "triton", "graph", "memset", "copy on the device")
WAITS = ("stream", "device", "event", "copy that blocks", "copy to pageable memory")
_REPOSITORY = Path(__file__).parents[2]
_HOOK = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_gpu = ctypes.CDLL(None)
_gpu.null_counts.restype = ctypes.c_char_p

# Its library is neither replaced nor able to start here.
torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)


@dataclass
class Work:
    """The requests that the GPU received."""

    counts: Counter[str] = field(default_factory=Counter)  # by kind
    kernels: Counter[str] = field(default_factory=Counter)  # by name
    waits_at: Counter[str] = field(default_factory=Counter)  # by kind and line of this repository

    @property
    def launches(self) -> int:
        return sum(self.counts[kind] for kind in LAUNCHES)

    @property
    def waits(self) -> int:
        return sum(self.counts[kind] for kind in WAITS)


def _read(of_kernels: bool) -> Counter[str]:
    lines = (line.split("\t", 1) for line in _gpu.null_counts(int(of_kernels)).decode().splitlines())
    return Counter({name: int(number) for number, name in lines})


@contextlib.contextmanager
def counted() -> Iterator[Work]:
    """Count what is asked of the GPU inside the `with`; the figures are there at its end."""
    work = Work()

    @_HOOK
    def note(kind: bytes) -> None:
        ours = [
            f"{Path(frame.filename).relative_to(_REPOSITORY)}:{frame.lineno}"
            for frame in traceback.extract_stack()
            if frame.filename.startswith(str(_REPOSITORY / "scm_fast"))
        ]
        work.waits_at[f"{kind.decode()} at {ours[-1] if ours else 'another place'}"] += 1

    _gpu.null_reset()
    _gpu.null_on_wait(note)
    try:
        yield work
    finally:
        _gpu.null_on_wait(None)
        work.counts, work.kernels = _read(False), _read(True)
