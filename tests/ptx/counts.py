"""Count what a launch does while it is emulated: instructions, barriers, sectors, bank conflicts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .memory import Access
from .parser import Kernel

if TYPE_CHECKING:
    from .execute import Threads

SECTOR = 32  # bytes of global memory that are moved together
_BANKS, _WORD = 32, 4  # of shared memory
_WARP_SHIFT = 40


@dataclass
class Sectors:
    """Sectors of global memory. A warp's load or store requests each one that its lanes touch once."""

    requested: int = 0
    used: int = 0  # the fewest that could hold the bytes of each request

    @property
    def efficiency(self) -> float:
        return self.used / self.requested if self.requested else 1.0


@dataclass
class Wavefronts:
    """Cycles of shared memory: those that accesses take, and would take if no two lanes met in a bank."""

    needed: int = 0
    without_conflicts: int = 0

    @property
    def conflicts(self) -> int:
        return self.needed - self.without_conflicts


@dataclass
class Counts:
    """Sums over all programs of a launch, unless named otherwise."""

    kernel: Kernel
    programs: int = 0
    barriers: int = 0
    executed: Counter[int] = field(default_factory=Counter)  # block -> warps that ran it
    sectors: dict[str, Sectors] = field(default_factory=lambda: {"load": Sectors(), "store": Sectors()})
    wavefronts: dict[str, Wavefronts] = field(
        default_factory=lambda: {"load": Wavefronts(), "store": Wavefronts()}
    )
    trace: list[int] = field(default_factory=list)  # blocks of the first program, in order

    @property
    def warps(self) -> int:
        """Return the mean per program."""
        return self.kernel.threads // 32

    @property
    def barriers_per_program(self) -> float:
        return self.barriers / self.programs

    def instructions_per_warp(self, name: str = "") -> float:
        """All of them, or those whose opcode begins with `name`: "shfl", "ld.global", ..."""
        total = 0
        for number, warps in self.executed.items():
            instructions = self.kernel.blocks[number].instructions
            total += warps * sum(instruction.opcode.startswith(name) for instruction in instructions)
        return total / (self.programs * self.warps)

    # ---- called while the launch runs

    def begin(self, threads: Threads) -> None:
        self.programs += len(threads.programs)

    def enter(self, block: int, threads: Threads) -> None:
        active = None if threads.mask is None else threads.mask.reshape(-1, 32).any(1)
        self.executed[block] += threads.count // 32 if active is None else int(active.sum())
        if threads.programs[0] == 0 and (active is None or active[: self.warps].any()):
            self.trace.append(block)

    def access(self, what: str, space: str, access: Access) -> None:
        warp = np.concatenate(([0], np.cumsum(np.diff(access.stamp) != 0)))  # threads come in order
        if space == "global":
            sectors = self.sectors[what]
            sectors.requested += _distinct(warp, access.offset // SECTOR).size
            elements = np.bincount(_distinct(warp, access.offset // access.size) >> _WARP_SHIFT)
            sectors.used += int((-(-elements * access.size // SECTOR)).sum())
        else:
            self._bank_conflicts(self.wavefronts[what], warp, access)

    def _bank_conflicts(self, wavefronts: Wavefronts, warp: np.ndarray, access: Access) -> None:
        """Lanes are served together as far as their words number 32: 16 lanes of 8 bytes, 8 lanes of 16."""
        words = max(1, access.size // _WORD)
        together = warp * words + access.thread % 32 * words // 32
        word = (access.offset // _WORD)[:, None] + np.arange(words)
        groups = int(together.max()) + 1
        distinct = _distinct(np.repeat(together, words), word.reshape(-1))
        lanes_at_bank = np.zeros((groups, _BANKS), np.int64)
        np.add.at(lanes_at_bank, (distinct >> _WARP_SHIFT, distinct % _BANKS), 1)
        wavefronts.needed += int(lanes_at_bank.max(1).sum())
        wavefronts.without_conflicts += int(lanes_at_bank.any(1).sum())


def _distinct(warp: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The different places that the warps go to, each warp for itself; the warp is in the upper bits."""
    return np.unique(warp << _WARP_SHIFT | place)
