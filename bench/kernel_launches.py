"""Record what would be launched: launchers run on ordinary tensors, with recorders in place of the kernels.

A recorded launch has everything that a real one has: the arguments with their shapes and strides, the constants,
the warps and the grid. `kernel_report` compiles it, `kernel_traffic` counts what it reads, writes and computes.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from scm_fast.environment import OPS
from scm_fast.ops import cls_row, laplacian, newton_schulz
from scm_fast.ops.activation_diffusion import Settings
from scm_fast.ops.spatial_calibration import spatial_calibration_backward_op, spatial_calibration_op

_OPTIONS = ("num_warps", "num_stages")


@dataclass
class Launch:
    """One recorded kernel launch."""

    kernel: JITFunction
    arguments: dict[str, Any]
    options: dict[str, int]
    grid: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.kernel.__name__.removesuffix("_kernel")

    @property
    def programs(self) -> int:
        return math.prod(self.grid)


class _Recorder:
    """Stands in for a kernel and notes how it is launched; `run` carries the launch out."""

    def __init__(self, kernel: JITFunction, launches: list[Launch], run: bool) -> None:
        self.kernel, self.launches, self.run = kernel, launches, run

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def record(*args: Any, **kwargs: Any) -> None:
            arguments = dict(zip(self.kernel.arg_names, args, strict=False))
            arguments.update({k: v for k, v in kwargs.items() if k not in _OPTIONS})
            options = {k: v for k, v in kwargs.items() if k in _OPTIONS}
            self.launches.append(Launch(self.kernel, arguments, options, grid))
            if self.run:
                self.kernel[grid](*args, **kwargs)

        return record


@contextlib.contextmanager
def recorded_launches(run: bool = False) -> Iterator[list[Launch]]:
    """Record launches of this package's kernels in the list; carry them out only with `run`."""
    launches: list[Launch] = []
    replaced = []
    for op in OPS:
        module = importlib.import_module(f"scm_fast.kernels.{op}")
        for name, value in list(vars(module).items()):
            if name.endswith("_kernel"):
                replaced.append((module, name, value))
                setattr(module, name, _Recorder(value, launches, run))
    try:
        yield launches
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)


@dataclass(frozen=True)
class Step:
    """A training step of the module, forward and backward: the shape of S and the settings of the blocks."""

    batch: int = 2
    classes: int = 200
    grid: tuple[int, int] = (14, 14)
    iterations: tuple[int, ...] = (4, 4, 4, 4)
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    detach_init: bool = False

    def launch(self) -> None:
        self.launch_backward(*self.launch_forward())

    def launch_forward(self) -> tuple[torch.Tensor, ...]:
        """Returns the arguments of the backward pass."""
        # Zeros take no memory until somebody reads them, and a recorder does not.
        S = torch.zeros(self.batch, self.classes, *self.grid, dtype=self.dtype)
        S = S.to(memory_format=torch.channels_last) if self.channels_last else S
        F = torch.zeros(self.batch, *self.grid)
        lam, beta = torch.ones(len(self.iterations)), torch.ones(len(self.iterations))
        logits, _, *kept = spatial_calibration_op(S, F, lam, beta, *self.settings)
        return S, F, lam, beta, *kept, torch.zeros_like(logits)

    def launch_backward(self, *saved_and_dlogits: torch.Tensor) -> None:
        spatial_calibration_backward_op(*saved_and_dlogits, None, None, *self.settings)

    @property
    def settings(self) -> Settings:
        return Settings(self.iterations, 0.002, self.detach_init, "auto", "triton")


def recorded_step(step: Step) -> tuple[list[Launch], list[Launch]]:
    """The launches of the forward and of the backward pass."""
    with recorded_launches() as forward:
        arguments = step.launch_forward()
    with recorded_launches() as backward:
        step.launch_backward(*arguments)
    return forward, backward


def launch_dense(grid: tuple[int, int], detach_init: bool) -> None:
    """A forward and backward pass of the dense path: Laplacian, X_p F, and X_p itself."""
    N = grid[0] * grid[1]
    edges, lam = torch.zeros(2, 2, *grid), torch.ones(())
    L = laplacian.laplacian_op(edges, lam, "triton")
    laplacian.laplacian_backward_op(L, edges, lam, "triton")
    F = torch.zeros(2, N)
    settings = (0.002, detach_init, "triton")
    out, iterates = newton_schulz.newton_schulz_apply_op(L, F, 2, *settings)
    newton_schulz.newton_schulz_apply_backward_op(out, L, F, iterates, *settings)
    X, iterates = newton_schulz.newton_schulz_op(L, 2, *settings)
    newton_schulz.newton_schulz_backward_op(X, L, iterates, *settings)


def launch_cls_row(batch: int, heads: int, tokens: int, d: int, dtype: torch.dtype) -> None:
    """A forward and backward pass of the CLS row."""
    q, k, dq, dk = (torch.zeros(batch, tokens, heads, d, dtype=dtype).transpose(1, 2) for _ in range(4))
    row, rows = cls_row.cls_row_op(q, k, d**-0.5, "triton")
    cls_row.cls_row_backward_op(dq, dk, torch.zeros_like(row), q, k, rows, d**-0.5, "triton")
