"""`SpatialCalibration`: calibrates a transformer's semantic and attention maps during training."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import reference
from .backends import check_backend_name, resolve_backend
from .errors import InputError
from .ops.activation_diffusion import Settings, check_solver
from .ops.spatial_calibration import spatial_calibration_op

# The paper and its published code differ; see scm_fast/ops/README.md.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"num_blocks": 4, "iterations": 4, "detach_init": False},
    "official": {"num_blocks": 4, "iterations": (16, 4, 4, 4), "detach_init": True},
}


class CalibrationOutput(NamedTuple):
    logits: Tensor  # (B, C), mean over the tokens of S * gain
    attention: Tensor  # (B, H, W), F after the last block
    gain: Tensor  # (B, H, W), product over the blocks of 1 + f


class CalibrationTrace(NamedTuple):
    """The maps after every block; index 0 is the first block's output."""

    semantic: list[Tensor]  # S^l, each (B, C, H, W)
    attention: list[Tensor]  # F^l, each (B, H, W)
    filtered: list[Tensor]  # f_l, each (B, H, W)


def expand_iterations(iterations: int | Sequence[int], num_blocks: int) -> tuple[int, ...]:
    """One Newton-Schulz iteration count per block, from one for all or one for each."""
    counts = tuple(iterations) if isinstance(iterations, Sequence) else (iterations,) * num_blocks
    if len(counts) != num_blocks:
        raise InputError(
            f"iterations must be an int or one per block: got {len(counts)} for num_blocks={num_blocks}"
        )
    if any(not isinstance(count, Integral) or isinstance(count, bool) or count < 0 for count in counts):
        raise InputError(f"iterations must be non-negative integers, got {iterations!r}")
    return tuple(int(count) for count in counts)


def check_maps(S: Tensor, F: Tensor) -> None:
    """Raise an InputError that names what is wrong with the pair of maps."""
    if S.ndim != 4:
        raise InputError(f"S must have shape (B, C, H, W), got {tuple(S.shape)}")
    if F.ndim != 3:
        raise InputError(f"F must have shape (B, H, W), got {tuple(F.shape)}")
    if S.shape[0] != F.shape[0] or S.shape[2:] != F.shape[1:]:
        expected = (S.shape[0], *S.shape[2:])
        raise InputError(f"F must have shape {expected} to go with S {tuple(S.shape)}, got {tuple(F.shape)}")
    if S.numel() == 0:
        raise InputError(f"S must not be empty, got shape {tuple(S.shape)}")
    for name, value in (("S", S), ("F", F)):
        if not value.is_floating_point():
            raise InputError(f"{name} must have a floating-point dtype, got {value.dtype}")
    if S.device != F.device:
        raise InputError(f"S and F must be on one device, got {S.device} and {F.device}")


class SpatialCalibration(nn.Module):
    """A stack of activation diffusion blocks over a semantic map S and an attention map F.

    Args:
        num_blocks: how many blocks are stacked.
        iterations: Newton-Schulz iterations p, one number for all blocks or one for each.
        alpha: scale of the initial inverse X_0 = alpha L^T.
        lam: initial value of every block's `lam`, the weight of semantic similarity.
        beta: initial value of every block's `beta`, the soft threshold.
        detach_init: treat X_0 as a constant in the backward pass, as the published code does.
        solver: `stencil` (matrix-free), `dense` (batched matrices) or `auto` (by cost, for each block).
        backend: `reference`, `torch`, `triton` or `auto`; see `scm_fast.backends`.
    """

    def __init__(
        self,
        num_blocks: int = 4,
        iterations: int | Sequence[int] = 4,
        alpha: float = 0.002,
        lam: float = 1.0,
        beta: float = 0.5,
        detach_init: bool = False,
        solver: str = "auto",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if not isinstance(num_blocks, int) or isinstance(num_blocks, bool) or num_blocks < 1:
            raise InputError(f"num_blocks must be a positive integer, got {num_blocks!r}")
        for name, value in (("alpha", alpha), ("lam", lam), ("beta", beta)):
            if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
                raise InputError(f"{name} must be a finite number, got {value!r}")
        if not isinstance(detach_init, bool):
            raise InputError(f"detach_init must be true or false, got {detach_init!r}")
        if alpha <= 0:
            raise InputError(f"alpha must be positive, got {alpha!r}")
        if beta == 0:
            raise InputError("beta must not be 0: the soft threshold divides by it")
        counts = expand_iterations(iterations, num_blocks)
        check_solver(solver, counts)
        self.settings = Settings(counts, float(alpha), detach_init, solver, check_backend_name(backend))
        self.lam = nn.Parameter(torch.full((num_blocks,), float(lam)))
        self.beta = nn.Parameter(torch.full((num_blocks,), float(beta)))

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> SpatialCalibration:
        """`paper` or `official`, with any keyword of the constructor to override it."""
        if name not in PRESETS:
            raise InputError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
        if unknown := overrides.keys() - set(KEYWORDS):
            raise InputError(
                f"the calibration has no {', '.join(sorted(map(str, unknown)))}; it has {', '.join(KEYWORDS)}"
            )
        return cls(**{**PRESETS[name], **overrides})

    @property
    def num_blocks(self) -> int:
        return len(self.settings.iterations)

    def extra_repr(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings._asdict().items())
        return f"num_blocks={self.num_blocks}, {settings}"

    def forward(self, S: Tensor, F: Tensor) -> CalibrationOutput:
        """S (B, C, H, W) and raw attention F (B, H, W), in any floating dtype, to the calibrated maps."""
        logits, attention, gain, _ = self._run(S, F)
        return CalibrationOutput(logits, attention, gain)

    @torch.no_grad()
    def trace(self, S: Tensor, F: Tensor) -> CalibrationTrace:
        """Every block's maps, for pictures and ablations; nothing is recorded for a backward pass."""
        _, last, _, filtered = self._run(S, F)
        gain = (1 + filtered).cumprod(1)
        first = last - filtered.sum(1)
        attention = first.unsqueeze(1) + filtered.cumsum(1)
        return CalibrationTrace(
            [S * g.unsqueeze(1) for g in gain.unbind(1)], list(attention.unbind(1)), list(filtered.unbind(1))
        )

    def _run(self, S: Tensor, F: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """logits (B, C), attention and gain (B, H, W), and every block's f (B, blocks, H, W)."""
        check_maps(S, F)
        if not S.device == self.lam.device == self.beta.device:
            raise InputError(f"S is on {S.device}, lam on {self.lam.device} and beta on {self.beta.device}")
        settings = self.settings._replace(backend=resolve_backend(self.settings.backend, S.device))
        if settings.backend == "reference":
            literal = (settings.iterations, settings.alpha, settings.detach_init)
            return reference.spatial_calibration(S, F, self.lam, self.beta, *literal)
        return spatial_calibration_op(S, F, self.lam, self.beta, *settings)[:4]


KEYWORDS = tuple(inspect.signature(SpatialCalibration).parameters)
