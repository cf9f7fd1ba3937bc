"""Instructions as functions on Threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import warps
from .errors import UnknownInstruction
from .execute import Threads
from .parser import Address, Guard, Instruction, Kernel, Operand
from .semantics import DTYPES, OPERATIONS

Step = Callable[[Threads], None]
_SPECIAL = ("%tid.x", "%laneid", *(f"%{what}.{axis}" for what in ("ctaid", "nctaid") for axis in "xyz"))


class Code:
    """A kernel with its instructions translated; `steps` are those of each block, `guards` those of branches."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._index = {name: i for i, name in enumerate(kernel.registers)}
        self.steps = [[self._translate(instruction) for instruction in block.body] for block in kernel.blocks]
        self.granules = {space: self._granule(space) for space in ("global", "shared")}
        self.guards = {}
        for number, block in enumerate(kernel.blocks):
            if block.end is None or not self._check_end(block.end):
                continue
            self.guards[number] = self.guard(block.end.guard)

    def _check_end(self, end: Instruction) -> bool:
        """Whether the branch, barrier or return has a guard."""
        known = end.opcode.startswith("bra") or end.guard is None
        if not known or (end.opcode.startswith("bar") and end.operands != ("0",)):
            raise UnknownInstruction(f"the emulator does not have {end}")
        return end.guard is not None

    def _granule(self, space: str) -> int:
        """Bytes of the smallest access to `space`, at most 4: the unit in which races are looked for."""
        kinds = [
            i.opcode.split(".")[-1]
            for i in self.kernel.instructions()
            if i.opcode[2:].startswith(f".{space}")
        ]
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
        if isinstance(operand, str) and operand.startswith("%"):
            _SPECIAL.index(operand)
            return lambda t: t.special[operand]
        if isinstance(operand, str) and operand.startswith("!"):
            opposite = self.read(operand[1:], "pred")
            return lambda t: ~opposite(t)
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
            special = {
                "ld": self._load,
                "st": self._store,
                "mov": self._move,
            }
            if name in warps.TRANSLATE:
                return warps.TRANSLATE[name](self, instruction)
            return special.get(name, self._compute)(instruction)
        except (KeyError, ValueError, IndexError) as error:
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

    def address(self, address: Address, space: str) -> Callable[[Threads], Any]:
        kind = {"global": "u64", "shared": "u32"}[space]
        base, offset = self.read(address.base, kind), _constant(str(address.offset), kind)
        return (lambda t: base(t) + offset) if address.offset else base

    def _load(self, instruction: Instruction) -> Step:
        _, space, *vector, kind = instruction.opcode.split(".")
        to, address = instruction.operands
        names = to if isinstance(to, tuple) else (to,)
        writes = [self.write(name, instruction) for name in names]
        dtype = DTYPES[kind]
        if space == "param":
            write = writes[0]
            return lambda t: write(t, t.launch.parameters[address.base].astype(dtype))
        _check_vector(vector, len(names))
        where, mask, count = self.address(address, space), self.mask(instruction), len(names)

        def load(t: Threads) -> None:
            active = mask(t)
            if active is not None and not active.any():
                return
            region, access = t.locate(instruction, space, active, where(t), dtype, count)
            if t.launch.counts is not None:
                t.launch.counts.access("load", space, access)
            values = region.load(access)
            if active is not None:
                values, found = np.zeros((t.count, count), dtype), values
                values[active] = found
            for k, write in enumerate(writes):
                write(t, np.ascontiguousarray(values[:, k]))

        return load

    def _store(self, instruction: Instruction) -> Step:
        _, space, *vector, kind = instruction.opcode.split(".")
        address, source = instruction.operands
        names = source if isinstance(source, tuple) else (source,)
        _check_vector(vector, len(names))
        reads = [self.read(name, kind) for name in names]
        where, mask, dtype, count = (
            self.address(address, space),
            self.mask(instruction),
            DTYPES[kind],
            len(names),
        )

        def store(t: Threads) -> None:
            active = mask(t)
            if active is not None and not active.any():
                return
            region, access = t.locate(instruction, space, active, where(t), dtype, count)
            if t.launch.counts is not None:
                t.launch.counts.access("store", space, access)
            values = np.stack([t.spread(read(t)) for read in reads], 1)
            region.store(access, values if active is None else values[active])

        return store


def _check_vector(modifiers: list[str], count: int) -> None:
    if modifiers != ([] if count == 1 else [f"v{count}"]):
        raise ValueError(modifiers)


def _constant(text: str, kind: str) -> Any:
    dtype = DTYPES[kind]
    if kind == "pred":
        return np.bool_(int(text, 0) != 0)
    bits = int(text[2:], 16) if text[:2] in ("0f", "0d", "0F", "0D") else int(text, 0)
    size = np.dtype(dtype).itemsize
    return np.frombuffer((bits % (1 << 8 * size)).to_bytes(size, "little"), dtype)[0]
