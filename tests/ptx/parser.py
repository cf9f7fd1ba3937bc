"""PTX text to basic blocks of instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from .errors import UnknownInstruction


class Address(NamedTuple):
    """[base + offset]; the base is a register, a parameter or the shared memory."""

    base: str
    offset: int


Operand = str | Address | tuple[str, ...]  # a register or number, an address, a vector in braces


class Guard(NamedTuple):
    """@%p or @!%p in front of an instruction."""

    register: str
    negated: bool


@dataclass(frozen=True)
class Instruction:
    opcode: str
    operands: tuple[Operand, ...]
    guard: Guard | None
    line: int  # in the PTX, from 1
    text: str
    source: str  # file.py:line of the kernel's source

    def __str__(self) -> str:
        return f"PTX line {self.line}: {self.text}" + (f" ({self.source})" if self.source else "")


@dataclass
class Block:
    """Instructions that run one after the other, and the branch, barrier or return that ends them, if any does."""

    body: list[Instruction] = field(default_factory=list)
    end: Instruction | None = None

    @property
    def instructions(self) -> list[Instruction]:
        return self.body if self.end is None else [*self.body, self.end]


@dataclass
class Kernel:
    name: str
    parameters: list[tuple[str, str]]  # (name, type)
    registers: dict[str, str]  # name -> type of the declaration: pred, b16, b32, b64
    threads: int
    shared_symbol: str  # name of the shared memory, which begins at address 0
    blocks: list[Block]
    labels: dict[str, int]  # label -> index of its block


ENDS = ("bra", "bra.uni", "ret", "exit", "bar.sync", "barrier.sync", "barrier.sync.aligned")
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)([^{]*)\{", re.S)
_LABEL = re.compile(r"([\w$]+):")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"(?:[^"]*/)?([^"/]+)"', re.M)
_LOCATION = re.compile(r"\.loc\s+(\d+)\s+(\d+)(?:.*inlined_at\s+(\d+)\s+(\d+))?")


def parse(text: str) -> Kernel:
    """The one kernel of a module. Nothing is said here about what an instruction means."""
    entry = _ENTRY.search(text)
    if entry is None:
        raise UnknownInstruction("the text has no .entry")
    name, parameters, directives = entry.groups()
    threads = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)", directives)
    shared = re.search(r"\.shared\b.*?([\w$]+)\[\]", text)
    kernel = Kernel(
        name=name,
        parameters=[(n, t) for t, n in re.findall(r"\.param\s+\.(\w+)[^,]*?([\w$]+)\s*(?:,|$)", parameters)],
        registers={},
        threads=int(threads[1]) if threads else 32,
        shared_symbol=shared[1] if shared else "",
        blocks=[Block()],
        labels={},
    )
    reader = _Reader(kernel, dict(_FILE.findall(text)))
    first_line = text.count("\n", 0, entry.end()) + 1
    for number, line in enumerate(text[entry.end() :].split("\n"), first_line):
        if not reader.read(line.split("//")[0].strip(), number):
            return kernel
    raise UnknownInstruction(f"the body of {name} has no end")


class _Reader:
    """Takes the lines of a body one by one."""

    def __init__(self, kernel: Kernel, files: dict[str, str]) -> None:
        self.kernel, self.files = kernel, files
        self.statement, self.source = "", ""
        self.scopes: list[dict[str, str]] = []  # registers of blocks in braces, under names of their own
        self.locals = 0

    def read(self, line: str, number: int) -> bool:
        """False at the end of the body."""
        if location := _LOCATION.match(line):
            self.source = f"{self.files.get(location[1], '?')}:{location[2]}"
            if location[3]:
                self.source += f" from {self.files.get(location[3], '?')}:{location[4]}"
            return True
        while line:
            if not self.statement and line[0] in "{}":
                if line[0] == "{":
                    self.scopes.append({})
                elif self.scopes:
                    self.scopes.pop()
                else:
                    return False
                line = line[1:].strip()
            elif not self.statement and (label := _LABEL.match(line)):
                self._label(label[1])
                line = line[label.end() :].strip()
            else:
                head, end, line = line.partition(";")
                self.statement = f"{self.statement} {head}".strip()
                line = line.strip()
                if end:
                    self._statement(self.statement, number)
                    self.statement = ""
        return True

    def _label(self, label: str) -> None:
        if label.startswith(("$L__tmp", "$L__func")):  # of the debugger
            return
        if self.kernel.blocks[-1].body:
            self.kernel.blocks.append(Block())
        self.kernel.labels[label] = len(self.kernel.blocks) - 1

    def _statement(self, text: str, number: int) -> None:
        if text.startswith(".reg"):
            self._declare(text)
            return
        if text.startswith("."):  # .pragma
            return
        match = re.match(r"(?:@(!?)([\w%$]+)\s+)?(\S+)\s*(.*)", text, re.S)
        assert match is not None
        negated, register, opcode, operands = match.groups()
        guard = Guard(self._name(register), bool(negated)) if register else None
        parsed = tuple(self._operand(operand) for operand in _split(operands))
        instruction = Instruction(opcode, parsed, guard, number, " ".join(text.split()), self.source)
        if opcode in ENDS:
            self.kernel.blocks[-1].end = instruction
            self.kernel.blocks.append(Block())
        else:
            self.kernel.blocks[-1].body.append(instruction)

    def _declare(self, text: str) -> None:
        match = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text, re.S)
        assert match is not None
        for name in match[2].split(","):
            name = name.strip()
            if family := re.fullmatch(r"([\w%$]+)<(\d+)>", name):
                names = [f"{family[1]}{i}" for i in range(int(family[2]))]
            elif self.scopes:
                self.locals += 1
                names = [f"{name}@{self.locals}"]
                self.scopes[-1][name] = names[0]
            else:
                names = [name]
            self.kernel.registers.update(dict.fromkeys(names, match[1]))

    def _name(self, name: str) -> str:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), name)

    def _operand(self, text: str) -> Operand:
        if text.startswith("{"):
            return tuple(self._name(part) for part in _split(text[1:-1]))
        if text.startswith("["):
            base, _, offset = text[1:-1].partition("+")
            return Address(self._name(base.strip()), int(offset.strip() or "0", 0))
        return self._name(text)


def _split(text: str) -> list[str]:
    """Split at commas that are not inside braces or brackets."""
    return [part.strip() for part in re.findall(r"(?:\{[^}]*\}|\[[^]]*\]|[^,])+", text)]
