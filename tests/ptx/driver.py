"""The emulator in place of the GPU: a Triton driver whose device is a target and whose launches are emulated.

Kernels are specialised, compiled and launched by Triton itself, as on a GPU, on tensors in the memory of the CPU.
The assembler is left out: a kernel's binary is its PTX.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from scm_fast import backends

from .counts import Counts
from .execute import Launch, pointer, run
from .memory import UNWRITTEN, WRITTEN, Region
from .parser import parse
from .semantics import DTYPES
from .translate import Code

# Compute capability, and the shared memory that one program may have there, in bytes.
TARGETS = {
    "sm_75": (75, 64 * 1024),
    "sm_80": (80, 163 * 1024),
    "sm_86": (86, 99 * 1024),
    "sm_89": (89, 99 * 1024),
    "sm_90": (90, 227 * 1024),
    "sm_100": (100, 227 * 1024),
    "sm_120": (120, 99 * 1024),
}


@dataclass
class Launched:
    """One emulated launch; `counts` where they were asked for."""

    kernel: str
    grid: tuple[int, int, int]
    warps: int
    counts: Counts | None


@dataclass
class Emulator:
    """The part of a driver that Triton asks for, and no more."""

    target: str
    count: bool = False
    change: Callable[[str], str] = lambda ptx: ptx  # of a kernel's text, before it is run
    launched: list[Launched] = field(default_factory=list)

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", TARGETS[self.target][0], 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_device(self) -> int:
        return TARGETS[self.target][0]  # Triton keeps what it compiled by device

    def get_current_stream(self, device: int) -> int:
        return 0

    @property
    def utils(self) -> Emulator:
        return self

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": TARGETS[self.target][1]}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple:
        """Module, function, registers, spills, threads. There is no module that Triton would have to unload."""
        return None, binary.decode(), 0, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        runtime = [name for name, kind in source.signature.items() if kind != "constexpr"]
        names = [parameter.name for parameter in source.fn.params]

        def launch(x, y, z, stream, ptx, packed, launch_metadata, enter_hook, exit_hook, *values) -> None:
            given = dict(zip(names, values, strict=True))
            driver.active.run(ptx, {name: given[name] for name in runtime}, (x, y, z), metadata.shared)

        return launch

    def run(self, ptx: str, arguments: dict[str, Any], grid: tuple[int, int, int], shared: int) -> None:
        code = translated(self.change(ptx))
        counts = Counts(code.kernel) if self.count else None
        regions, pointers = _regions(arguments, code.granules["global"])
        parameters = {}
        for number, (name, kind) in enumerate(code.kernel.parameters):
            # Triton appends pointers to scratch memory that these kernels have no use for.
            value = pointers[number] if number < len(pointers) else 0
            parameters[name] = np.array(value).astype(DTYPES[kind])[()]
        run(code, Launch(regions, parameters, grid, shared, counts))
        name = code.kernel.name.removesuffix("_kernel")
        self.launched.append(Launched(name, grid, code.kernel.threads // 32, counts))


@functools.lru_cache(64)
def translated(ptx: str) -> Code:
    return Code(parse(ptx))


def _regions(arguments: dict[str, Any], granule: int) -> tuple[list[Region], list[int]]:
    """A region for every storage, and the values of the arguments: addresses in place of tensors."""
    regions: dict[int, Region] = {}
    values = []
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            values.append(value)
            continue
        storage = value.untyped_storage()
        if storage.data_ptr() not in regions:
            regions[storage.data_ptr()] = Region(name, _bytes(value), granule, between_programs=True)
        region = regions[storage.data_ptr()]
        _mark(region, value)
        offset = value.storage_offset() * value.element_size()
        values.append(pointer(list(regions).index(storage.data_ptr()), offset))
    return list(regions.values()), values


def _mark(region: Region, tensor: Tensor) -> None:
    """The bytes of the tensor's elements belong to it; those that still hold the poison were never written."""
    size = tensor.element_size()
    shape, strides = (*tensor.shape, size), (*(s * size for s in tensor.stride()), 1)
    begin = tensor.storage_offset() * size
    data, state = (
        np.lib.stride_tricks.as_strided(x[begin:], shape, strides) for x in (region.data, region.state)
    )
    state[...] = np.where((data == _poison(size)).all(-1, keepdims=True), UNWRITTEN, WRITTEN)


def _poison(size: int) -> np.ndarray:
    """Bytes of a NaN, in every floating-point type, that nobody computes."""
    return np.array([0xFE] * (size - 1) + [0xFF], np.uint8)


def uninitialised(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`make`, whose tensors have anything in them, with the poison in them that `_mark` knows."""

    @functools.wraps(make)
    def poisoned(*args: Any, **kwargs: Any) -> Tensor:
        tensor = make(*args, **kwargs)
        if type(tensor) is Tensor and tensor.device.type == "cpu" and tensor.is_floating_point():
            size = tensor.element_size()
            _bytes(tensor).reshape(-1, size)[:] = _poison(size)
        return tensor

    return poisoned


def _bytes(tensor: Tensor) -> np.ndarray:
    """Those of its storage, in place."""
    return torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()


def _leave_out_the_assembler(*arguments: Any) -> Any:
    """Triton's hook for the stages of compilation; called without arguments for a key of its cache."""
    if not arguments:
        return "ptx is the binary", "ptx is the binary"
    arguments[1]["cubin"] = lambda ptx, metadata: ptx.encode()
    return None


@contextlib.contextmanager
def emulated(target: str, **options: Any) -> Iterator[Emulator]:
    """Run Triton kernels emulated, on CPU tensors; tensors made empty are poisoned."""
    emulator = Emulator(target, **options)
    replaced = [
        (driver, "_active", emulator),
        (knobs.runtime, "add_stages_inspection_hook", _leave_out_the_assembler),
        (backends, "interpreting", lambda: True),  # the triton backend serves CPU tensors
        (torch, "empty", uninitialised(torch.empty)),
        (torch, "empty_like", uninitialised(torch.empty_like)),
        (torch.Tensor, "new_empty", uninitialised(torch.Tensor.new_empty)),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield emulator
