"""Instructions as functions on Threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import warps
from .errors import UnknownInstruction
from .execute import SPECIAL_REGISTERS, Threads
from .parser import Guard, Instruction, Kernel, Operand
from .semantics import DTYPES, OPERATIONS

Step = Callable[[Threads], None]


class Code:
    """A kernel with its instructions translated: `steps` of every block, `guards` of the branches that end them."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._index = {name: i for i, name in enumerate(kernel.registers)}
        self.steps = [[self._translate(instruction) for instruction in block.body] for block in kernel.blocks]
        self.guards = {k: self._end(block.end) for k, block in enumerate(kernel.blocks) if block.end}
        self.granules = {space: self._granule(space) for space in ("global", "shared")}

    def _end(self, end: Instruction) -> Callable[[Threads], Any] | None:
        """The guard of a branch; barriers and returns of a part of the threads are not known."""
        branch = end.opcode.startswith("bra")
        if (end.guard and not branch) or (end.opcode.startswith("bar") and end.operands != ("0",)):
            raise UnknownInstruction(f"the emulator does not have {end}")
        return self.guard(end.guard) if end.guard else None

    def _granule(self, space: str) -> int:
        """Bytes of the smallest access to `space`, at most 4: the unit in which races are looked for."""
        instructions = (i for block in self.kernel.blocks for i in block.body)
        kinds = [i.opcode.split(".")[-1] for i in instructions if i.opcode[2:].startswith(f".{space}")]
        return min([4, *(np.dtype(DTYPES[kind]).itemsize for kind in kinds)])

    # ---- operands

    def read(self, operand: Operand, kind: str) -> Callable[[Threads], Any]:
        """The operand's value as type `kind`."""
        dtype = DTYPES[kind]
        if operand in self._index:
            i, own = self._index[operand], self.kernel.registers[operand]
            if kind == "pred":
                return lambda t: t.registers[i]
            if np.dtype(DTYPES[own]).itemsize == np.dtype(dtype).itemsize:
                return lambda t: t.registers[i].view(dtype)
            return lambda t: t.registers[i].astype(DTYPES[f"b{kind[1:]}"]).view(dtype)
        if operand in SPECIAL_REGISTERS:
            return lambda t: t.special[operand]
        constant = _constant("0" if operand == self.kernel.shared_symbol else operand, kind)
        return lambda t: constant

    def guard(self, guard: Guard) -> Callable[[Threads], Any]:
        i = self._index[guard.register]
        return (lambda t: ~t.registers[i]) if guard.negated else (lambda t: t.registers[i])

    def mask(self, instruction: Instruction) -> Callable[[Threads], np.ndarray | None]:
        """Threads that carry the instruction out; None for all."""
        if instruction.guard is None:
            return lambda t: t.mask
        guard = self.guard(instruction.guard)
        return lambda t: t.spread(guard(t) if t.mask is None else guard(t) & t.mask)

    def write(self, operand: Operand, instruction: Instruction) -> Callable[[Threads, Any], None]:
        """Stores a result in a register, extended by its own sign or zero where the register is wider."""
        if operand == "_":
            return lambda t, value: None
        i, mask = self._index[operand], self.mask(instruction)
        dtype = DTYPES[self.kernel.registers[operand]]
        size = np.dtype(dtype).itemsize

        def write(t: Threads, value: Any) -> None:
            if dtype is not np.bool_:
                if value.dtype.itemsize == size:
                    value = value.view(dtype)
                elif value.dtype.kind == "i":
                    value = value.astype(f"i{size}").view(dtype)
                else:
                    value = value.astype(dtype)
            active = mask(t)
            t.registers[i] = value if active is None else np.where(active, value, t.registers[i])

        return write

    # ---- instructions

    def _translate(self, instruction: Instruction) -> Step:
        try:
            name = instruction.opcode.split(".")[0]
            if name in warps.TRANSLATE:
                return warps.TRANSLATE[name](self, instruction)
            special = {"ld": self._load, "st": self._store, "mov": self._move}
            return special.get(name, self._compute)(instruction)
        except (KeyError, ValueError) as error:
            raise UnknownInstruction(f"the emulator does not have {instruction}") from error

    def _compute(self, instruction: Instruction) -> Step:
        compute, takes, _ = OPERATIONS[instruction.opcode, len(instruction.operands) - 1]
        write = self.write(instruction.operands[0], instruction)
        reads = [self.read(o, kind) for o, kind in zip(instruction.operands[1:], takes, strict=True)]
        if len(reads) == 1:
            (a,) = reads
            return lambda t: write(t, compute(a(t)))
        if len(reads) == 2:
            a, b = reads
            return lambda t: write(t, compute(a(t), b(t)))
        a, b, c = reads
        return lambda t: write(t, compute(a(t), b(t), c(t)))

    def _move(self, instruction: Instruction) -> Step:
        """mov, also between a wide register and a vector of narrow ones."""
        to, source = instruction.operands
        if not isinstance(to, tuple) and not isinstance(source, tuple):
            return self._compute(instruction)
        kind = instruction.opcode.split(".")[1]
        wide = DTYPES[kind]
        parts = len(to if isinstance(to, tuple) else source)
        bits = np.dtype(wide).itemsize * 8 // parts
        narrow = DTYPES[f"b{bits}"]
        if isinstance(to, tuple):
            writes, read = [self.write(part, instruction) for part in to], self.read(source, kind)

            def unpack(t: Threads) -> None:
                value = read(t)
                for k, write in enumerate(writes):
                    write(t, (value >> wide(k * bits)).astype(narrow))

            return unpack
        reads, write = [self.read(part, f"b{bits}") for part in source], self.write(to, instruction)

        def pack(t: Threads) -> None:
            value = reads[0](t).astype(wide)
            for k, read in enumerate(reads[1:], 1):
                value = value | read(t).astype(wide) << wide(k * bits)
            write(t, value)

        return pack

    def address(self, address: Operand, space: str) -> Callable[[Threads], Any]:
        kind = {"global": "u64", "shared": "u32"}[space]
        base, offset = self.read(address.base, kind), _constant(str(address.offset), kind)
        return (lambda t: base(t) + offset) if address.offset else base

    def _load(self, instruction: Instruction) -> Step:
        to, address = instruction.operands
        names = to if isinstance(to, tuple) else (to,)
        writes = [self.write(name, instruction) for name in names]
        kind = DTYPES[instruction.opcode.split(".")[-1]]
        if instruction.opcode.startswith("ld.param."):
            (write,) = writes
            return lambda t: write(t, t.launch.parameters[address.base].astype(kind))
        locate = self._locate(instruction, "load", address, len(names))

        def load(t: Threads) -> None:
            if found := locate(t):
                active, region, access = found
                values = np.zeros((t.count, access.count), access.dtype)
                values[slice(None) if active is None else active] = region.load(access)
                for write, column in zip(writes, values.T, strict=True):
                    write(t, np.ascontiguousarray(column).view(kind))

        return load

    def _store(self, instruction: Instruction) -> Step:
        address, source = instruction.operands
        names = source if isinstance(source, tuple) else (source,)
        reads = [self.read(name, f"b{_bits(instruction)}") for name in names]
        locate = self._locate(instruction, "store", address, len(names))

        def store(t: Threads) -> None:
            if found := locate(t):
                active, region, access = found
                values = np.stack([t.spread(read(t)) for read in reads], 1)
                region.store(access, values if active is None else values[active])

        return store

    def _locate(self, instruction: Instruction, what: str, address: Operand, count: int) -> Callable:
        """Make, for ld and st, a function that gives active threads, region and access, if there is any."""
        _, space, *modifiers, _ = instruction.opcode.split(".")
        if modifiers != ([] if count == 1 else [f"v{count}"]):
            raise ValueError(modifiers)
        where, mask, dtype = (
            self.address(address, space),
            self.mask(instruction),
            DTYPES[f"b{_bits(instruction)}"],
        )

        def locate(t: Threads) -> tuple | None:
            active = mask(t)
            if active is not None and not active.any():
                return None
            return active, *t.locate(instruction, what, space, active, where(t), dtype, count)

        return locate


def _bits(instruction: Instruction) -> str:
    return instruction.opcode.split(".")[-1][1:]


def _constant(text: str, kind: str) -> Any:
    dtype = DTYPES[kind]
    if kind == "pred":
        return np.bool_(int(text, 0) != 0)
    bits = int(text[2:], 16) if text[:2] in ("0f", "0d", "0F", "0D") else int(text, 0)
    size = np.dtype(dtype).itemsize
    return np.frombuffer((bits % (1 << 8 * size)).to_bytes(size, "little"), dtype)[0]
