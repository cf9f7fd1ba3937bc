"""The stack of activation diffusion blocks, collapsed to scalar fields.

    F, edges (B, 2, H, W), lam (L,), beta (L,)  ->  attention, gain (B, H, W), f (B, L, H, W)

    F_0 = minmax(F);   each block:   f_l = softthreshold(X_p F_l),   F_{l+1} = F_l + f_l,   gain *= 1 + f_l

The similarities are those of the first block for all: S' = S * (1 + f) scales a token's vector, which a cosine
does not see. Blocks run matrix-free (`stencil`) or on dense matrices (`dense`); consecutive stencil blocks are
one run, and one kernel launch on the triton backend. Backward, last block first:

    df = dF_{l+1} + dgain_{l+1} gain_l,   dgain_l = dgain_{l+1} (1 + f_l)

and everything inside a block is computed again rather than kept: f is all that is saved.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError
from . import blocks
from ._dispatch import custom_op, kernels
from .blocks import MAX_FUSED_BLOCKS, Blocks, can_fuse, images_first, tokens_first

METHODS = ("stencil", "dense")
# 2^p fields are walked back by the stencil: beyond this the matrices are smaller.
MAX_STENCIL_ITERATIONS = 10
# Cost of a stencil's operation against one inside a matrix product; see `choose_method`.
_STENCIL_PENALTY = 48
# Elements of a field (N, b) that the torch implementation takes at a time, to stay in the cache.
_CHUNK = 1 << 16
# Elements of the matrices that the backward pass of a dense block keeps at a time: 1 GiB in float32.
_MATRIX_ELEMENTS = 1 << 28


def choose_method(iterations: int, tokens: int) -> str:
    """The cheaper way to compute X_p F for one image.

    The stencil takes 2 * 2^p - 1 applications of 9 N operations, the matrices p - 1 products of 2 N^3. An
    operation inside a product is about 48 times cheaper (registers instead of memory; fitted on the CPU with
    `bench/bench_calibration.py`). At 14 x 14 tokens the matrices win from p = 10 on. Up to p = 6 the stencil is
    always taken: where so few tokens would favour matrices, both take no time, and only it is a single launch.
    """
    if iterations <= 6:
        return "stencil"
    stencil = _STENCIL_PENALTY * 2 ** (iterations + 1) * 9 * tokens
    dense = max(iterations - 1, 1) * 2 * tokens**3
    return "stencil" if iterations <= MAX_STENCIL_ITERATIONS and stencil <= dense else "dense"


def check_method(method: str, iterations: Sequence[int]) -> None:
    if method not in (*METHODS, "auto"):
        raise InputError(f"method must be one of {', '.join(METHODS)} or auto, got {method!r}")
    if method == "stencil" and max(iterations) > MAX_STENCIL_ITERATIONS:
        raise InputError(
            f"method='stencil' takes at most {MAX_STENCIL_ITERATIONS} iterations "
            f"(it costs 2^p), got {max(iterations)}; use 'dense' or 'auto'"
        )


def dense_blocks(method: str, iterations: Sequence[int], tokens: int) -> list[bool]:
    """Whether each block runs on dense matrices, for `method` stencil, dense or auto."""
    return [(choose_method(p, tokens) if method == "auto" else method) == "dense" for p in iterations]


@custom_op("calibration")
def calibration_op(
    F: Tensor,
    edges: Tensor,
    lam: Tensor,
    beta: Tensor,
    iterations: Sequence[int],
    dense: Sequence[bool],
    alpha: float,
    detach_init: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """attention and gain (B, H, W) and f (B, L, H, W), in the dtype of the edges."""
    if fused(F, edges.dtype, dense, backend):
        return kernels("calibration").forward(F, edges, lam, beta, iterations, alpha)
    grid = (F.shape[1], F.shape[2])
    lam, beta = lam.to(edges.dtype), beta.to(edges.dtype)
    f = edges.new_empty(F.shape[0], len(iterations), *F.shape[1:])
    attention, gain = torch.empty_like(f[:, 0]), torch.empty_like(f[:, 0])
    for images in _image_chunks(F, iterations, dense):
        edges_part = tokens_first(edges[images])
        stack = Blocks(edges_part, lam, beta, grid, iterations, dense, alpha, detach_init, backend)
        results = blocks.forward(stack, tokens_first(F[images].to(edges.dtype)))
        for out, result in zip((attention, gain, f), results, strict=True):
            out[images] = images_first(result, grid)
    return attention, gain, f


@custom_op("calibration_backward")
def calibration_backward_op(
    F: Tensor,
    edges: Tensor,
    lam: Tensor,
    beta: Tensor,
    f: Tensor,
    dattention: Tensor | None,
    dgain: Tensor | None,
    iterations: Sequence[int],
    dense: Sequence[bool],
    alpha: float,
    detach_init: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dF (B, H, W), dedges (B, 2, H, W), dlam (L,) and dbeta (L,), each in its input's dtype."""
    if fused(F, edges.dtype, dense, backend):
        dF, dedges, shares = kernels("calibration").backward(
            F, edges, lam, beta, f, dattention, dgain, iterations, alpha, detach_init
        )
        return dF, dedges, shares[:, 0].sum(0).to(lam.dtype), shares[:, 1].sum(0).to(beta.dtype)
    dattention = torch.zeros_like(f[:, 0]) if dattention is None else dattention
    dgain = torch.zeros_like(f[:, 0]) if dgain is None else dgain
    grid = (F.shape[1], F.shape[2])
    wide_lam, wide_beta = lam.to(edges.dtype), beta.to(edges.dtype)
    dF, dedges = F.new_empty(F.shape), edges.new_empty(edges.shape)
    dlam, dbeta = torch.zeros_like(wide_lam), torch.zeros_like(wide_beta)
    for images in _image_chunks(F, iterations, dense):
        edges_part = tokens_first(edges[images])
        stack = Blocks(edges_part, wide_lam, wide_beta, grid, iterations, dense, alpha, detach_init, backend)
        raw = tokens_first(F[images].to(edges.dtype))
        given = (tokens_first(x[images]) for x in (f, dattention, dgain))
        dF_part, dedges_part, dlam_part, dbeta_part = blocks.backward(stack, raw, *given)
        dF[images] = images_first(dF_part, grid)
        dedges[images] = images_first(dedges_part, grid)
        dlam += dlam_part
        dbeta += dbeta_part
    return dF, dedges, dlam.to(lam.dtype), dbeta.to(beta.dtype)


def fused(F: Tensor, dtype: torch.dtype, dense: Sequence[bool], backend: str) -> bool:
    """Whether one kernel serves the whole stack: on the triton backend, matrix-free, up to 15 blocks."""
    fits = can_fuse(backend, F.shape[1] * F.shape[2], dtype)
    return fits and not any(dense) and len(dense) <= MAX_FUSED_BLOCKS


def _image_chunks(F: Tensor, iterations: Sequence[int], dense: Sequence[bool]) -> list[slice]:
    """Slices of the batch: on the CPU such that fields stay in the cache, anywhere such that matrices fit."""
    tokens = F[0].numel()
    step = max(1, _CHUNK // tokens) if F.device.type == "cpu" else F.shape[0]
    matrices = max((count for count, is_dense in zip(iterations, dense, strict=True) if is_dense), default=0)
    if matrices:
        step = min(step, max(1, _MATRIX_ELEMENTS // (matrices * tokens**2)))
    return [slice(start, start + step) for start in range(0, F.shape[0], step)]


@calibration_op.register_fake
def _(F, edges, lam, beta, iterations, dense, alpha, detach_init, backend):
    B, H, W = F.shape
    return (
        edges.new_empty(B, H, W),
        edges.new_empty(B, H, W),
        edges.new_empty(B, len(iterations), H, W),
    )


@calibration_backward_op.register_fake
def _(F, edges, lam, beta, f, dattention, dgain, iterations, dense, alpha, detach_init, backend):
    return tuple(x.new_empty(x.shape) for x in (F, edges, lam, beta))


def _setup_context(ctx, inputs, output):
    f = output[2]
    ctx.save_for_backward(*inputs[:4], f)
    ctx.settings = inputs[4:]
    ctx.mark_non_differentiable(f)
    ctx.set_materialize_grads(False)


def _autograd_backward(ctx, dattention, dgain, _):
    gradients = calibration_backward_op(*ctx.saved_tensors, dattention, dgain, *ctx.settings)
    return *gradients, *(None for _ in ctx.settings)


calibration_op.register_autograd(_autograd_backward, setup_context=_setup_context)
