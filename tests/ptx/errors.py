"""Objections of the emulator. Every message ends with the instruction, its PTX line and its Triton source."""

from __future__ import annotations


class EmulationError(Exception):
    """A kernel did what no kernel may do, or what the emulator does not know."""


class UnknownInstruction(EmulationError):
    """The emulator does not have this instruction."""


class OutOfBounds(EmulationError):
    """An access outside every tensor, outside the shared memory, or not aligned to its size."""


class UninitialisedRead(EmulationError):
    """A load of bytes that nobody has stored."""


class Race(EmulationError):
    """Two warps or two programs use one address without a barrier between, and at least one of them stores."""


class BarrierDivergence(EmulationError):
    """Threads that should act together, at a barrier or within a warp, have parted."""
