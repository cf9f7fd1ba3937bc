"""An estimate of how long one program takes that has a multiprocessor for itself.

A model, not a measurement. Its assumptions:

- PTX stands for machine code: an instruction is one instruction, but for divisions and square roots, which are
  sequences of them; moves and parameters cost nothing.
- All warps run the path of the first program. Four schedulers share them evenly and issue one instruction per cycle
  each, in the order of the program, when its operands are there and its unit is free.
- A unit takes a warp's instruction every so many cycles (a quarter of the multiprocessor's throughput), and the
  result is there after a latency, as published and measured for sm_80 and sm_90.
- Bank conflicts, misses of the instruction cache and the traffic of other programs are left out. Global memory
  answers from the first-level cache; `global_latency` tries another answer, about 250 cycles from the second level.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from .counts import Counts
from .parser import Address, Instruction

CLOCK_GHZ = 1.7
BARRIER = 24  # cycles from the last arrival
_SCHEDULERS = 4


class Cost(NamedTuple):
    unit: str
    latency: int  # cycles until the result can be used
    busy: int  # cycles until the unit takes the next instruction


# The first pattern that the opcode matches.
_COSTS = [
    (r"mov|ld\.param|cvt\.u64\.u32|cvt\.u32\.u64", Cost("", 0, 0)),
    (r"ld\.shared|ldmatrix", Cost("memory", 26, 4)),
    (r"ld\.global", Cost("memory", 33, 4)),
    (r"shfl|redux", Cost("memory", 24, 4)),
    (r"st|cp", Cost("memory", 1, 4)),
    (r"(div|rem)\.[su]", Cost("int", 100, 60)),
    (r"(div|sqrt|rcp)\.rn\.f64", Cost("fp64", 120, 40)),
    (r"div\.(full|rn)\.f32|sqrt\.rn\.f32", Cost("special", 40, 16)),
    (r"div\.approx|sqrt|rsqrt|rcp|ex2|lg2", Cost("special", 24, 8)),
    (r"mma", Cost("fp64", 26, 16)),
    (r".*\.f64", Cost("fp64", 8, 2)),
    (r"(add|sub|mul|fma|neg|abs)\S*\.f(32|32x2|16)|fma", Cost("fp32", 4, 1)),
    (r"", Cost("int", 4, 2)),
]


class CriticalPath(NamedTuple):
    cycles: int
    waits: Counter[str]  # unit, or "barrier" -> cycles that the first warp waited for it

    @property
    def microseconds(self) -> float:
        return self.cycles / CLOCK_GHZ / 1e3


def cost(opcode: str, global_latency: int | None = None) -> Cost:
    found = next(cost for pattern, cost in _COSTS if re.match(pattern, opcode))
    if global_latency is not None and opcode.startswith("ld.global"):
        found = found._replace(latency=global_latency)
    return found


def _registers(operands: tuple) -> list[str]:
    found = []
    for operand in operands:
        parts = (
            operand
            if type(operand) is tuple
            else (operand.base if isinstance(operand, Address) else operand,)
        )
        found += [part for part in parts if part.startswith("%")]
    return found


def _results_and_operands(instruction: Instruction) -> tuple[list[str], list[str]]:
    has_result = not instruction.opcode.startswith(("st.", "cp.", "bar", "bra", "ret"))
    results = _registers(instruction.operands[:1]) if has_result else []
    operands = _registers(instruction.operands[has_result:])
    if instruction.guard:
        operands += [instruction.guard.register, *results]  # where the guard says no, the old value stays
    return results, operands


def critical_path(counts: Counts, global_latency: int | None = None) -> CriticalPath:
    """Simulate the first program of a counted launch. One scheduler is enough: the others do the same."""
    warps = -(-counts.warps // _SCHEDULERS)
    blocks = {
        number: [
            (i.opcode, cost(i.opcode, global_latency), *_results_and_operands(i))
            for i in counts.kernel.blocks[number].instructions
        ]
        for number in set(counts.trace)
    }
    ready: list[dict[str, tuple[int, str]]] = [{} for _ in range(warps)]  # register -> when, from which unit
    next_issue = [0] * warps
    scheduler, unit_free, waits = 0, Counter[str](), Counter[str]()
    for number in counts.trace:
        for opcode, (unit, latency, busy), results, operands in blocks[number]:
            if opcode.startswith("bar"):
                arrived = max(next_issue)
                waits["barrier"] += arrived + BARRIER - next_issue[0]
                next_issue = [arrived + BARRIER] * warps
                continue
            for warp in range(warps):
                when, what = max((ready[warp].get(o, (0, "")) for o in operands), default=(0, ""))
                if not unit:
                    ready[warp].update(dict.fromkeys(results, (when, what)))
                    continue
                if warp == 0 and when > next_issue[0]:
                    waits[what] += when - next_issue[0]
                issue = max(when, next_issue[warp], scheduler, unit_free[unit])
                scheduler = next_issue[warp] = issue + 1
                unit_free[unit] = issue + busy
                ready[warp].update(dict.fromkeys(results, (issue + latency, unit)))
    return CriticalPath(max(next_issue), waits)
