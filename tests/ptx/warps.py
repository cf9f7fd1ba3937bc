"""Instructions that the lanes of a warp carry out together, and asynchronous copies."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .errors import BarrierDivergence, UnknownInstruction
from .parser import Instruction
from .semantics import fma64

if TYPE_CHECKING:
    from .execute import Threads
    from .translate import Code, Step

_LANES = np.arange(32)


def _by_warp(threads: Threads, value) -> np.ndarray:
    """[warps, 32]"""
    return threads.spread(value).reshape(-1, 32)


def _shuffle(code: Code, instruction: Instruction) -> Step:
    """shfl.sync.MODE.b32 d, a, b, 31, -1: lane i takes a of lane i ^ b (bfly) or b (idx)."""
    mode = instruction.opcode.removeprefix("shfl.sync.").removesuffix(".b32")
    source_lane = {"bfly": lambda lane, b: lane ^ b, "idx": lambda lane, b: b & 31}[mode]
    to, a, b, clamp, members = instruction.operands
    if (clamp, members) != ("31", "-1"):
        raise ValueError(clamp, members)
    write, value, distance = code.write(to, instruction), code.read(a, "b32"), code.read(b, "u32")

    def shuffle(t: Threads) -> None:
        t.check_whole_warps(t.mask, instruction)
        values = _by_warp(t, value(t))
        lanes = source_lane(_LANES, _by_warp(t, distance(t)).astype(np.int64))
        write(t, np.take_along_axis(values, np.broadcast_to(lanes, values.shape), 1).reshape(-1))

    return shuffle


def _reduce(code: Code, instruction: Instruction) -> Step:
    """redux.sync.{min,max}.f32 d, a, members."""
    _, _, name, kind = instruction.opcode.split(".")
    fold = {"min": np.fmin, "max": np.fmax}[name]
    if kind != "f32":
        raise ValueError(kind)
    to, a, members = instruction.operands
    write, value, who = code.write(to, instruction), code.read(a, kind), code.read(members, "s32")

    def reduce(t: Threads) -> None:
        t.check_whole_warps(t.mask, instruction)
        if (np.asarray(who(t)) != -1).any():
            raise UnknownInstruction(f"a part of the lanes; {instruction}")
        write(t, np.repeat(fold.reduce(_by_warp(t, value(t)), 1), 32))

    return reduce


def _load_matrix(code: Code, instruction: Instruction) -> Step:
    """ldmatrix: lane 8 k + r has the address of row r of matrix k; lane l receives word l % 4 of row l / 4."""
    count = int(instruction.opcode.removeprefix("ldmatrix.sync.aligned.m8n8.x").removesuffix(".shared.b16"))
    to, address = instruction.operands
    if len(to) != count or instruction.guard:
        raise ValueError(to)
    writes, where = [code.write(name, instruction) for name in to], code.address(address, "shared")

    def load(t: Threads) -> None:
        t.check_whole_warps(t.mask, instruction)
        rows = _by_warp(t, where(t))
        for k, write in enumerate(writes):
            words = (rows[:, 8 * k + _LANES // 4] + (_LANES % 4 * 4).astype(np.uint32)).reshape(-1)
            region, access = t.locate(instruction, "load", "shared", t.mask, words, np.uint32, 1)
            values = np.zeros(t.count, np.uint32)
            values[slice(None) if t.mask is None else t.mask] = region.load(access)[:, 0]
            write(t, values)

    return load


def _multiply_matrices(code: Code, instruction: Instruction) -> Step:
    """A B + C in float64: lane l has A[l / 4, l % 4], B[l % 4, l / 4], and C[l / 4, 2 (l % 4)] and the next."""
    if instruction.opcode != "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64" or instruction.guard:
        raise ValueError(instruction.opcode)
    to, a, b, c = instruction.operands
    writes = [code.write(name, instruction) for name in to]
    reads = [code.read(name, "f64") for name in (*a, *b, *c)]

    def multiply(t: Threads) -> None:
        t.check_whole_warps(t.mask, instruction)
        A, B, *C = (_by_warp(t, read(t)).reshape(-1, 8, 4) for read in reads)
        out = np.stack(C, -1).reshape(-1, 8, 8)
        for k in range(4):
            out = fma64(A[:, :, None, k], B[:, None, :, k], out)
        for k, write in enumerate(writes):
            write(t, np.ascontiguousarray(out.reshape(-1, 8, 4, 2)[..., k]).reshape(-1))

    return multiply


def _copy_asynchronously(code: Code, instruction: Instruction) -> Step:
    """cp.async from global to shared memory: no thread may use the target until its group was waited for."""
    if instruction.opcode == "cp.async.commit_group":
        return lambda t: t.copies.append([])
    if instruction.opcode == "cp.async.wait_group":
        left = int(instruction.operands[0])
        return lambda t: _complete(t, left, instruction)
    if instruction.opcode not in ("cp.async.ca.shared.global", "cp.async.cg.shared.global"):
        raise ValueError(instruction.opcode)
    target, source, size, *rest = instruction.operands
    words = int(size, 0) // 4
    to, where, mask = code.address(target, "shared"), code.address(source, "global"), code.mask(instruction)
    source_size = code.read(rest[0] if rest else size, "u32")

    def copy(t: Threads) -> None:
        active = np.ones(t.count, bool) if mask(t) is None else mask(t)
        given = t.spread(source_size(t))
        if not np.isin(given[active], (0, 4 * words)).all():
            raise UnknownInstruction(f"a part of the bytes is copied; {instruction}")
        values = np.zeros((t.count, words), np.uint32)  # what is not copied is zero
        reading = active & (given > 0)
        if reading.any():
            region, access = t.locate(instruction, "load", "global", reading, where(t), np.uint32, words)
            values[reading] = region.load(access)
        if active.any():
            shared, access = t.locate(instruction, "store", "shared", active, to(t), np.uint32, words)
            shared.store(access, values[active])  # from now on at any time
            shared.forget(access)
            t.copies[-1].append((shared, access, active, values[active]))

    return copy


def _complete(t: Threads, left: int, instruction: Instruction) -> None:
    """All but the last `left` groups arrive, as stores of now."""
    t.copies, done = t.copies[-left - 1 :], t.copies[: -left - 1]
    for shared, access, active, values in itertools.chain(*done):
        if t.mask is not None and (active & ~t.mask).any():
            raise BarrierDivergence(f"threads that copy are elsewhere; {instruction}")
        shared.store(dataclasses.replace(access, instruction=instruction, stamp=t.stamp[active]), values)


TRANSLATE: dict[str, Callable[[Code, Instruction], Step]] = {
    "shfl": _shuffle,
    "redux": _reduce,
    "ldmatrix": _load_matrix,
    "mma": _multiply_matrices,
    "cp": _copy_asynchronously,
}
