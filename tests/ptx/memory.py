"""Memory that knows which bytes belong to a tensor, which were stored, and who used them last.

Every tensor's storage is a region with an address space of its own, far from the others: whatever a kernel adds to
a pointer, it cannot reach another tensor unnoticed. The shared memory of the programs that run side by side is one
region, of which each has its part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import OutOfBounds, Race, UninitialisedRead
from .parser import Instruction

OUTSIDE, UNWRITTEN, WRITTEN = 0, 1, 2  # of a byte

# Who used an address: program + 1, barriers that the program has passed, warp.
_PROGRAM_SHIFT, _EPOCH_SHIFT = 36, 6
_MANY = (1 << _EPOCH_SHIFT) - 1  # in place of a warp: several of them
_LOG2 = {1: 0, 2: 1, 4: 2, 8: 3}
# The state of an element whose bytes are all written.
_WRITTEN = {t: np.full(8, WRITTEN, np.uint8).view(t)[0] for t in (np.uint8, np.uint16, np.uint32, np.uint64)}


def stamps(program: np.ndarray, epoch: np.ndarray, warp: np.ndarray) -> np.ndarray:
    return (program + 1 << _PROGRAM_SHIFT) | (epoch << _EPOCH_SHIFT) | warp


@dataclass
class Access:
    """Threads that carry out one instruction on memory, and where: `offset` in bytes from the region's begin."""

    instruction: Instruction
    offset: np.ndarray  # [n]
    dtype: Any  # of an element
    count: int  # elements per thread
    stamp: np.ndarray  # [n]
    thread: np.ndarray  # [n], within its program

    @property
    def size(self) -> int:
        return self.count * np.dtype(self.dtype).itemsize

    def elements(self) -> np.ndarray:
        """Their indices in an array of `dtype`, [n, count]."""
        return (self.offset >> _LOG2[np.dtype(self.dtype).itemsize])[:, None] + np.arange(self.count)

    def who(self, i: int) -> str:
        return f"thread {self.thread[i]} of program {(self.stamp[i] >> _PROGRAM_SHIFT) - 1}"


class Region:
    """Bytes, used in place; all are outside of tensors until `state` says otherwise."""

    def __init__(self, name: str, data: np.ndarray, granule: int, between_programs: bool) -> None:
        self.name, self.data = name, data
        self.state = np.zeros_like(data)
        self.races = Races(-(-data.size // granule), granule, between_programs)
        self._views: dict[Any, np.ndarray] = {}

    def _view(self, of: str, dtype: Any) -> np.ndarray:
        """The data or the state as elements of `dtype`."""
        if (of, dtype) not in self._views:
            whole = self.data.size // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize
            self._views[of, dtype] = getattr(self, of)[:whole].view(dtype)
        return self._views[of, dtype]

    def check(self, access: Access) -> None:
        """Check that the addresses are aligned, and in the region at all."""
        offset, size = access.offset, access.size
        wrong = (offset < 0) | (offset > self.data.size - size) | (offset & size - 1 != 0)
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            what = "is not aligned" if 0 <= offset[i] <= self.data.size - size else "is outside"
            raise OutOfBounds(
                f"{access.who(i)}: {size} bytes at byte {offset[i]} of {self.name}, which has {self.data.size} "
                f"bytes: the address {what}; {access.instruction}"
            )

    def load(self, access: Access) -> np.ndarray:
        """[n, count]"""
        index = access.elements()
        state = self._view("state", access.dtype)[index]
        missing = state != _WRITTEN[access.dtype]
        if missing.any():
            self._outside(access, state)
            where = np.flatnonzero(missing.any(1))
            raise UninitialisedRead(
                f"{access.who(where[0])} loads from {self.name}, byte {access.offset[where[0]]}, what nobody has "
                f"stored ({len(where)} threads do); {access.instruction}"
            )
        if found := self.races.load(access):
            raise Race(f"{self.name}: {found}")
        return self._view("data", access.dtype)[index]

    def store(self, access: Access, values: np.ndarray) -> None:
        """values [n, count]"""
        index = access.elements()
        self._outside(access, self._view("state", access.dtype)[index])
        data = self._view("data", access.dtype)
        changed = (data[index] != values).any(1)
        data[index] = values
        lost = (data[index] != values).any(1)  # to another thread of this instruction
        if found := self.races.store(access, changed, lost):
            raise Race(f"{self.name}: {found}")
        if lost.any() and _beyond_rounding(data[index], values):
            i = int(np.flatnonzero(lost)[0])
            raise Race(
                f"{self.name}: {access.who(i)} and another one store different values in byte {access.offset[i]} "
                f"at the same time ({lost.sum()} threads do); {access.instruction}"
            )
        self._view("state", access.dtype)[index] = _WRITTEN[access.dtype]

    def forget(self, access: Access) -> None:
        """The bytes are about to be overwritten at an unknown time: nobody may load them."""
        self.state[access.offset[:, None] + np.arange(access.size)] = UNWRITTEN

    def _outside(self, access: Access, state: np.ndarray) -> None:
        bad = (np.ascontiguousarray(state).view(np.uint8) == OUTSIDE).any(1)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise OutOfBounds(
                f"{access.who(i)}: byte {access.offset[i]} of {self.name} belongs to no tensor that the kernel "
                f"was given; {access.instruction}"
            )


def _beyond_rounding(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether two arrays of bits differ by more than the rounding of floating-point sums, by 32 or 64 bits.

    Threads that hold the same element of a tensor may have summed it in different orders.
    """

    def differ(a: np.ndarray, b: np.ndarray, bound: float) -> bool:
        scale = np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
        return not ((np.abs(a - b) <= bound * scale) | (a == b) | (np.isnan(a) & np.isnan(b))).all()

    return a.itemsize < 4 or (
        differ(a.view(np.float32), b.view(np.float32), 2.0**-16)
        and (a.itemsize < 8 or differ(a.view(np.float64), b.view(np.float64), 2.0**-40))
    )


class Races:
    """Remember who loaded and stored each granule last, and whether a barrier of its program has passed since."""

    def __init__(self, granules: int, granule: int, between_programs: bool) -> None:
        self.granule, self.between_programs = granule, between_programs
        self.stored, self.loaded = np.zeros(granules, np.int64), np.zeros(granules, np.int64)
        self.stored_at, self.loaded_at = np.zeros(granules, np.int32), np.zeros(granules, np.int32)
        self.loaded_by = np.zeros(granules if between_programs else 0, np.int64)  # program + 1, -1: several

    def _granules(self, access: Access) -> tuple[np.ndarray, np.ndarray]:
        per_thread = access.size // self.granule
        granules = (access.offset >> _LOG2[self.granule])[:, None] + np.arange(per_thread)
        return granules.reshape(-1), np.repeat(access.stamp, per_thread)

    def load(self, access: Access) -> str:
        """Return what it conflicts with, in words; empty where nothing."""
        g, stamp = self._granules(access)
        stored = self.stored[g]
        conflict = _unordered(stored, stamp, self.between_programs)
        if conflict.any():
            return self._describe(access, conflict, "loads", stored, "stored", self.stored_at[g])
        before = self.loaded[g]
        self.loaded[g] = stamp
        several = _unordered(before, stamp, False) | (self.loaded[g] != stamp)
        self.loaded[g[several]] = stamp[several] | _MANY
        self.loaded_at[g] = access.instruction.line
        if self.between_programs:
            program, before = stamp >> _PROGRAM_SHIFT, self.loaded_by[g]
            self.loaded_by[g] = program
            several = ((before != 0) & (before != program)) | (self.loaded_by[g] != program)
            self.loaded_by[g[several]] = -1
        return ""

    def store(self, access: Access, changed: np.ndarray, lost: np.ndarray) -> str:
        """Do as `load`; to store what is there already, or what another stores as well, is no conflict."""
        g, stamp = self._granules(access)
        changed, lost = (np.repeat(x, access.size // self.granule) for x in (changed, lost))
        program, loaded, stored = stamp >> _PROGRAM_SHIFT, self.loaded[g], self.stored[g]
        conflict = _unordered(loaded, stamp, False)
        if self.between_programs:
            conflict |= (self.loaded_by[g] != 0) & (self.loaded_by[g] != program)
        if conflict.any():
            return self._describe(access, conflict, "stores", loaded, "loaded", self.loaded_at[g])
        conflict = changed & _unordered(stored, stamp, self.between_programs)
        if conflict.any():
            return self._describe(access, conflict, "stores", stored, "stored", self.stored_at[g])
        self.stored[g] = stamp
        self.stored_at[g] = access.instruction.line
        conflict = lost & (self.stored[g] >> _PROGRAM_SHIFT != program)
        if conflict.any():
            return self._describe(access, conflict, "stores", self.stored[g], "stored", self.stored_at[g])
        return ""

    def _describe(self, access: Access, conflict, does: str, other, did: str, line) -> str:
        k = int(np.flatnonzero(conflict)[0])
        i = k // (access.size // self.granule)
        program, warp = (other[k] >> _PROGRAM_SHIFT) - 1, other[k] & _MANY
        whose = "several warps" if warp == _MANY else f"warp {warp}"
        return (
            f"{access.who(i)} {does} byte {access.offset[i]}, which {whose} of program {program} {did} at PTX "
            f"line {line[k]}, with no barrier between ({conflict.sum()} conflicts); {access.instruction}"
        )


def _unordered(other: np.ndarray, stamp: np.ndarray, between_programs: bool) -> np.ndarray:
    """Tell whether no barrier orders an earlier use of an address and this one, by different warps or programs."""
    unordered = (other != stamp) & (other >> _EPOCH_SHIFT == stamp >> _EPOCH_SHIFT)
    if between_programs:
        unordered |= (other != 0) & (other >> _PROGRAM_SHIFT != stamp >> _PROGRAM_SHIFT)
    return unordered
