"""The stack of activation diffusion blocks, collapsed to scalar fields.

    F, edges (B, 2, H, W), lam (L,), beta (L,)  ->  attention, gain (B, H, W), f (B, L, H, W)

    F_0 = minmax(F);   each block:   f_l = softthreshold(X_p F_l),   F_{l+1} = F_l + f_l,   gain *= 1 + f_l

The similarities are those of the first block for all: S' = S * (1 + f) scales a token's vector, which a cosine
does not see. `plan` decides how each block is computed: in one kernel with its neighbours, by stencils, or on
dense matrices. Backward, last block first:

    df = dF_{l+1} + dgain_{l+1} gain_l,   dgain_l = dgain_{l+1} (1 + f_l)

and everything inside a block is computed again rather than kept: f is all that is saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from ..backends import custom_op, implementation, op_backend
from ..errors import InputError
from . import diffusion_blocks
from .diffusion_blocks import Blocks, images_first, tokens_first

SOLVERS = ("stencil", "dense")
# 2^p fields are walked back by the stencil: beyond this the matrices are smaller.
MAX_STENCIL_ITERATIONS = 10
# The fused kernel takes the iteration counts of at most so many blocks.
MAX_FUSED_BLOCKS = 15
# Tokens that it serves: registers hold 64 x 64, in float64 a quarter of that.
MAX_FUSED_TOKENS = {torch.float32: 4096, torch.float64: 1024}
# Cost of a stencil's operation against one inside a matrix product; see `choose_solver`.
_STENCIL_PENALTY = 48
# Elements of a field (N, b) that the torch implementation takes at a time, to stay in the cache.
_CHUNK = 1 << 16
# Elements of the matrices that the backward pass of a dense block keeps at a time: 1 GiB in float32.
_MATRIX_ELEMENTS = 1 << 28


class Settings(NamedTuple):
    """The settings of a stack of blocks; `*settings` is what a registered op takes."""

    iterations: Sequence[int]  # Newton-Schulz iterations p of every block
    alpha: float  # of X_0 = alpha L^T
    detach_init: bool = False  # X_0 is a constant in the backward pass
    solver: str = "auto"  # stencil, dense, or auto: by cost, for each block
    backend: str = "auto"


class Segment(NamedTuple):
    """Consecutive blocks that are computed together."""

    blocks: slice
    fused: bool  # in one kernel launch; otherwise one after the other
    dense: list[bool]  # of each block: on dense matrices


def choose_solver(iterations: int, tokens: int) -> str:
    """The cheaper way to compute X_p F for one image.

    The stencil takes 2 * 2^p - 1 applications of 9 N operations, the matrices p - 1 products of 2 N^3. An
    operation inside a product is about 48 times cheaper (registers instead of memory; fitted on the CPU with
    `bench/bench_spatial_calibration.py`). At 14 x 14 tokens the matrices win from p = 10 on. Up to p = 6 the
    stencil is always taken: where so few tokens would favour matrices, both take no time, and only it is a single
    launch.
    """
    if iterations <= 6:
        return "stencil"
    stencil = _STENCIL_PENALTY * 2 ** (iterations + 1) * 9 * tokens
    dense = max(iterations - 1, 1) * 2 * tokens**3
    return "stencil" if iterations <= MAX_STENCIL_ITERATIONS and stencil <= dense else "dense"


def check_solver(solver: str, iterations: Sequence[int]) -> None:
    if solver not in (*SOLVERS, "auto"):
        raise InputError(f"solver must be one of {', '.join(SOLVERS)} or auto, got {solver!r}")
    if solver == "stencil" and max(iterations) > MAX_STENCIL_ITERATIONS:
        raise InputError(
            f"solver='stencil' takes at most {MAX_STENCIL_ITERATIONS} iterations "
            f"(it costs 2^p), got {max(iterations)}; use 'dense' or 'auto'"
        )


def plan(settings: Settings, tokens: int, dtype: torch.dtype) -> list[Segment]:
    """Plan which blocks are computed how, for a grid of so many tokens and fields of `dtype`.

    On the triton backend stencil blocks go together, as many as one kernel takes. The others go one by one.
    """
    chosen = (
        choose_solver(p, tokens) if settings.solver == "auto" else settings.solver
        for p in settings.iterations
    )
    dense = [solver == "dense" for solver in chosen]
    fits = settings.backend == "triton" and tokens <= MAX_FUSED_TOKENS[dtype]
    segments = []
    for fused, group in groupby(range(len(dense)), key=lambda block: fits and not dense[block]):
        members = list(group)
        step = MAX_FUSED_BLOCKS if fused else len(members)
        for start in range(members[0], members[-1] + 1, step):
            blocks = slice(start, min(start + step, members[-1] + 1))
            segments.append(Segment(blocks, fused, dense[blocks]))
    return segments


def in_one_launch(segments: Sequence[Segment]) -> bool:
    return len(segments) == 1 and segments[0].fused


def activation_diffusion(
    F: Tensor, edges: Tensor, lam: Tensor, beta: Tensor, settings: Settings
) -> tuple[Tensor, Tensor]:
    """attention and gain (B, H, W) of raw F (B, H, W) and edges (B, 2, H, W); lam and beta (blocks,)."""
    if edges.ndim != 4 or edges.shape[1] != 2 or edges.numel() == 0:
        raise InputError(f"edges must have shape (B, 2, H, W), got {tuple(edges.shape)}")
    if edges.dtype not in MAX_FUSED_TOKENS:
        raise InputError(f"edges must be float32 or float64, got {edges.dtype}")
    expected = (edges.shape[0], *edges.shape[2:])
    if F.shape != expected or not F.is_floating_point():
        raise InputError(f"F must be a floating-point {expected}, got {F.dtype} {tuple(F.shape)}")
    blocks = (len(settings.iterations),)
    if not lam.shape == beta.shape == blocks:
        raise InputError(
            f"lam and beta must have shape {blocks}, got {tuple(lam.shape)} and {tuple(beta.shape)}"
        )
    check_solver(settings.solver, settings.iterations)
    backend = op_backend("activation_diffusion", settings.backend, F.device)
    return activation_diffusion_op(F, edges, lam, beta, *settings._replace(backend=backend))[:2]


@custom_op("activation_diffusion")
def activation_diffusion_op(
    F: Tensor, edges: Tensor, lam: Tensor, beta: Tensor, settings: Settings
) -> tuple[Tensor, Tensor, Tensor]:
    """attention and gain (B, H, W) and f (B, L, H, W), in the dtype of the edges."""
    return forward(F, edges, lam, beta, settings)


def forward(
    F: Tensor, edges: Tensor, lam: Tensor, beta: Tensor, settings: Settings
) -> tuple[Tensor, Tensor, Tensor]:
    """The op's body, which `spatial_calibration` calls in its own."""
    segments = plan(settings, F[0].numel(), edges.dtype)
    if in_one_launch(segments):
        kernels = implementation("activation_diffusion", "triton")
        return kernels.forward(F, edges, lam, beta, settings.iterations, settings.alpha)
    f = edges.new_empty(F.shape[0], len(settings.iterations), *F.shape[1:])
    attention, gain = torch.empty_like(f[:, 0]), torch.empty_like(f[:, 0])
    for images in _image_chunks(F, segments, settings):
        stack = Blocks.of(edges[images], lam, beta, settings)
        results = diffusion_blocks.forward(stack, segments, tokens_first(F[images].to(edges.dtype)))
        for out, result in zip((attention, gain, f), results, strict=True):
            out[images] = images_first(result, stack.grid)
    return attention, gain, f


class Saved(NamedTuple):
    """Keep what the backward pass needs: the inputs, and every block's f."""

    F: Tensor
    edges: Tensor
    lam: Tensor
    beta: Tensor
    f: Tensor


@custom_op("activation_diffusion_backward")
def activation_diffusion_backward_op(
    saved: Saved, dattention: Tensor | None, dgain: Tensor | None, settings: Settings
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dF (B, H, W), dedges (B, 2, H, W), dlam (L,) and dbeta (L,), each in its input's dtype."""
    return backward(saved, dattention, dgain, settings)


def backward(
    saved: Saved, dattention: Tensor | None, dgain: Tensor | None, settings: Settings
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    F, edges, lam, beta, f = saved
    segments = plan(settings, F[0].numel(), edges.dtype)
    if in_one_launch(segments):
        dF, dedges, shares = fused_backward(saved, dattention, dgain, settings)
        return dF, dedges, shares[:, 0].sum(0).to(lam.dtype), shares[:, 1].sum(0).to(beta.dtype)
    dattention = torch.zeros_like(f[:, 0]) if dattention is None else dattention
    dgain = torch.zeros_like(f[:, 0]) if dgain is None else dgain
    dF, dedges = F.new_empty(F.shape), edges.new_empty(edges.shape)
    dlam, dbeta = (x.new_zeros(x.shape, dtype=edges.dtype) for x in (lam, beta))
    for images in _image_chunks(F, segments, settings):
        stack = Blocks.of(edges[images], lam, beta, settings)
        given = (tokens_first(x[images]) for x in (f, dattention, dgain))
        raw = tokens_first(F[images].to(edges.dtype))
        dF_part, dedges_part, dlam_part, dbeta_part = diffusion_blocks.backward(stack, segments, raw, *given)
        dF[images] = images_first(dF_part, stack.grid)
        dedges[images] = images_first(dedges_part, stack.grid)
        dlam += dlam_part
        dbeta += dbeta_part
    return dF, dedges, dlam.to(lam.dtype), dbeta.to(beta.dtype)


def fused_backward(
    saved: Saved, dattention: Tensor | None, dgain: Tensor | None, settings: Settings
) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for a plan in one launch, dF, dedges, and every image's share of dlam and dbeta, (B, 2, L)."""
    kernels = implementation("activation_diffusion", "triton")
    return kernels.backward(
        *saved, dattention, dgain, settings.iterations, settings.alpha, settings.detach_init
    )


def _image_chunks(F: Tensor, segments: Sequence[Segment], settings: Settings) -> list[slice]:
    """Slices of the batch: on the CPU such that fields stay in the cache, anywhere such that matrices fit."""
    tokens = F[0].numel()
    step = max(1, _CHUNK // tokens) if F.device.type == "cpu" else F.shape[0]
    dense = [is_dense for segment in segments for is_dense in segment.dense]
    matrices = max((p for p, is_dense in zip(settings.iterations, dense, strict=True) if is_dense), default=0)
    if matrices:
        step = min(step, max(1, _MATRIX_ELEMENTS // (matrices * tokens**2)))
    return [slice(start, start + step) for start in range(0, F.shape[0], step)]


@activation_diffusion_op.register_fake
def _(F, edges, lam, beta, iterations, *_):
    B, H, W = F.shape
    return tuple(edges.new_empty(shape) for shape in ((B, H, W), (B, H, W), (B, len(iterations), H, W)))


@activation_diffusion_backward_op.register_fake
def _(F, edges, lam, beta, *_):
    return tuple(x.new_empty(x.shape) for x in (F, edges, lam, beta))


def _setup_context(ctx, inputs, output):
    f = output[2]
    ctx.save_for_backward(*inputs[:4], f)
    ctx.settings = inputs[4:]
    ctx.mark_non_differentiable(f)
    ctx.set_materialize_grads(False)


def _autograd_backward(ctx, dattention, dgain, _):
    gradients = activation_diffusion_backward_op(*ctx.saved_tensors, dattention, dgain, *ctx.settings)
    return *gradients, *(None for _ in ctx.settings)


activation_diffusion_op.register_autograd(_autograd_backward, setup_context=_setup_context)
