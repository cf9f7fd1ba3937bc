"""Runs a translated kernel: every register is an array over the threads of the programs that run side by side.

Between two barriers all warps go through the program in step. Which of them would have been first does not matter:
what depends on it is a race, and reported. Threads that branch differently are separate groups; the one that is
lowest in the text runs first, which joins them again behind the branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import BarrierDivergence, EmulationError
from .memory import UNWRITTEN, Access, Region, stamps
from .parser import Instruction, Kernel
from .semantics import DTYPES

if TYPE_CHECKING:
    from .counts import Counts
    from .translate import Code

_REGION_BITS = 40  # of an address within its region, whose first byte is in the middle
_THREADS_AT_ONCE = 1 << 14
_SHARED_GUARD = 128  # bytes between the shared memories of two programs

# What a register holds before it is written: LLVM reads some as halves of pairs that it then drops.
_POISON = {
    "pred": np.False_,
    **{t: np.full(8, 0xFE, np.uint8).view(DTYPES[t])[0] for t in ("b16", "b32", "b64")},
}
SPECIAL_REGISTERS = (
    "%tid.x", "%laneid", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z",
)  # fmt: skip


def pointer(region: int, offset: int) -> int:
    """The address of a byte of a region."""
    return (region + 1 << _REGION_BITS) + (1 << _REGION_BITS - 1) + offset


@dataclass
class Launch:
    """The arguments of a launch, and who looks on."""

    regions: list[Region]
    parameters: Mapping[str, Any]  # of the PTX -> a number of its type
    grid: tuple[int, int, int]
    shared_bytes: int
    counts: Counts | None = None


class Threads:
    """The state of the programs that run side by side."""

    def __init__(self, code: Code, launch: Launch, programs: np.ndarray) -> None:
        per_program = code.kernel.threads
        self.launch, self.programs, self.count = launch, programs, len(programs) * per_program
        self.registers: list[Any] = [_POISON[kind] for kind in code.kernel.registers.values()]
        self.mask: np.ndarray | None = None  # threads that run now; None for all
        self.thread = np.tile(np.arange(per_program), len(programs))  # within its program
        self.slot = np.repeat(np.arange(len(programs)), per_program)  # of its program, here
        x, y, z = launch.grid
        program = programs[self.slot]
        values = (self.thread, self.thread % 32, program % x, program // x % y, program // (x * y), x, y, z)
        self.special = {
            name: np.asarray(value, np.uint32) for name, value in zip(SPECIAL_REGISTERS, values, strict=True)
        }
        self.every = np.arange(self.count)
        self.epoch = np.zeros(len(programs), np.int64)  # barriers that each program has passed
        self.stamp = self._stamps()
        self.copies: list[list] = [[]]  # groups of asynchronous copies, the last one open
        self.shared_stride = -(-launch.shared_bytes // 16) * 16 + _SHARED_GUARD
        memory = np.full(len(programs) * self.shared_stride, 0xA5, np.uint8)
        self.shared = Region("shared memory", memory, code.granules["shared"], between_programs=False)
        self.shared.state.reshape(len(programs), -1)[:, : launch.shared_bytes] = UNWRITTEN

    def _stamps(self) -> np.ndarray:
        return stamps(self.programs[self.slot], self.epoch[self.slot], self.thread // 32)

    def spread(self, value: Any) -> np.ndarray:
        """A value per thread, of one per thread or one for all."""
        return value if value.shape == (self.count,) else np.broadcast_to(value, self.count)

    def locate(
        self,
        instruction: Instruction,
        what: str,
        space: str,
        mask: np.ndarray | None,
        addresses,
        dtype,
        count: int,
    ) -> tuple[Region, Access]:
        """The places where the threads of `mask` load or store `count` elements of `dtype` each."""
        lanes = self.every if mask is None else np.flatnonzero(mask)
        addresses = self.spread(addresses)[lanes]
        if space == "shared":
            region, offset = self.shared, addresses.astype(np.int64)
            beyond = offset >= self.launch.shared_bytes  # must not reach another program's part
            offset = np.where(beyond, self.shared.data.size, offset + self.slot[lanes] * self.shared_stride)
        else:
            index = (addresses >> np.uint64(_REGION_BITS)).astype(np.int64) - 1
            if (index != index[0]).any() or not 0 <= index[0] < len(self.launch.regions):
                raise EmulationError(f"the addresses are in no tensor, or in several; {instruction}")
            region = self.launch.regions[index[0]]
            offset = addresses.astype(np.int64) - pointer(int(index[0]), 0)
        access = Access(instruction, offset, dtype, count, self.stamp[lanes], self.thread[lanes])
        region.check(access)
        if self.launch.counts is not None:
            self.launch.counts.access(what, space, access)
        return region, access

    def check_whole_warps(self, mask: np.ndarray | None, instruction: Instruction) -> None:
        if mask is not None:
            of_warp = mask.reshape(-1, 32)
            if (of_warp.any(1) != of_warp.all(1)).any():
                raise BarrierDivergence(f"some lanes of a warp are elsewhere; {instruction}")

    def pass_barrier(self, waiting: dict[int, np.ndarray | None], kernel: Kernel) -> None:
        """All threads that are left wait. Those of one program must have come to one barrier, all of them."""
        for block, mask in waiting.items():
            here = np.ones(self.count, bool) if mask is None else mask
            of_program = here.reshape(len(self.programs), -1)
            if (of_program.any(1) != of_program.all(1)).any():
                raise BarrierDivergence(
                    f"threads of one program have left, or wait elsewhere; {kernel.blocks[block - 1].end}"
                )
            self.epoch[of_program.any(1)] += 1
            if self.launch.counts is not None:
                self.launch.counts.barriers += int(of_program.any(1).sum())
        self.stamp = self._stamps()


def run(code: Code, launch: Launch) -> None:
    """All programs of the launch; what they store is in its regions."""
    programs = np.arange(int(np.prod(launch.grid)))
    at_once = max(1, _THREADS_AT_ONCE // code.kernel.threads)
    with np.errstate(all="ignore"):
        for start in range(0, len(programs), at_once):
            _run_side_by_side(code, launch, programs[start : start + at_once])


def _run_side_by_side(code: Code, launch: Launch, programs: np.ndarray) -> None:
    threads = Threads(code, launch, programs)
    if launch.counts is not None:
        launch.counts.begin(threads)
    ready: dict[int, np.ndarray | None] = {0: None}  # block -> threads that are about to run it
    waiting: dict[int, np.ndarray | None] = {}  # block -> threads that wait at the barrier in front of it
    while ready:
        block = min(ready)
        threads.mask = ready.pop(block)
        if launch.counts is not None:
            launch.counts.enter(block, threads)
        for step in code.steps[block]:
            step(threads)
        end = code.kernel.blocks[block].end
        if end is None:
            _join(ready, block + 1, threads.mask)
        elif end.opcode.startswith("bra"):
            _branch(code, threads, block, end, ready)
        elif end.opcode.startswith("bar"):
            _join(waiting, block + 1, threads.mask)
        if not ready and waiting:
            threads.pass_barrier(waiting, code.kernel)
            ready, waiting = waiting, {}


def _branch(code: Code, threads: Threads, block: int, end: Instruction, ready: dict) -> None:
    target, guard = code.kernel.labels[end.operands[0]], code.guards[block]
    if guard is None:
        _join(ready, target, threads.mask)
        return
    taken = threads.spread(guard(threads))
    here = taken if threads.mask is None else taken[threads.mask]
    if here.all():
        _join(ready, target, threads.mask)
    elif not here.any():
        _join(ready, block + 1, threads.mask)
    else:
        active = np.ones(threads.count, bool) if threads.mask is None else threads.mask
        _join(ready, target, active & taken)
        _join(ready, block + 1, active & ~taken)


def _join(groups: dict[int, np.ndarray | None], block: int, mask: np.ndarray | None) -> None:
    """Threads come to `block`, where others may be already."""
    if block in groups and mask is not None:
        mask = mask | groups[block]
    groups[block] = None if mask is None or mask.all() else mask
