"""Runs the module on any backend and compares outputs and every named gradient."""

import itertools
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scm_fast import SpatialCalibration, reference

OUTPUTS = ("logits", "attention", "gain")
GRADIENTS = ("dS", "dF", "dlam", "dbeta")


def random_maps(batch: int, classes: int, grid: tuple[int, int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """S (B, C, H, W) and raw F (B, H, W) in float64."""
    generator = torch.Generator().manual_seed(seed)
    S = torch.randn(batch, classes, *grid, generator=generator, dtype=torch.float64)
    return S, torch.rand(batch, *grid, generator=generator, dtype=torch.float64)


def module(backend: str, iterations: Sequence[int], dtype: torch.dtype = torch.float64, **settings):
    """Blocks with different, not initial, parameters."""
    blocks = len(iterations)
    scm = SpatialCalibration(blocks, list(iterations), backend=backend, **settings).to(dtype)
    with torch.no_grad():
        scm.lam.copy_(torch.linspace(0.9, 1.2, blocks))
        scm.beta.copy_(torch.linspace(0.4, 0.6, blocks))
    return scm


def literal_settings(scm: SpatialCalibration) -> dict[str, Any]:
    """Return what the reference needs of them."""
    return {name: getattr(scm.settings, name) for name in ("iterations", "alpha", "detach_init")}


def results(scm: SpatialCalibration, S: Tensor, F: Tensor, seed: int = 1) -> dict[str, Tensor]:
    """Outputs, and the gradients of a random combination of them, in float64 on the CPU."""
    scm = scm.to(S.device)
    scm.zero_grad()
    S, F = S.detach().requires_grad_(), F.detach().requires_grad_()
    outputs = scm(S, F)
    generator = torch.Generator().manual_seed(seed)
    loss = torch.zeros((), dtype=torch.float64, device=S.device)
    for output in outputs:
        weight = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(S.device)
        loss = loss + (output.double() * weight).sum()
    loss.backward()
    # An input that nothing depends on has no gradient: p = 0 with X_0 detached leaves lam without.
    gradients = [x.grad if x.grad is not None else torch.zeros_like(x) for x in (S, F, scm.lam, scm.beta)]
    named = zip((*OUTPUTS, *GRADIENTS), (*outputs, *gradients), strict=True)
    return {name: value.detach().double().cpu() for name, value in named}


def beta_terms(scm: SpatialCalibration, S: Tensor, F: Tensor, seed: int = 1) -> Tensor:
    """Return per block the sum of the magnitudes of the terms that nearly cancel in beta's gradient."""
    beta = scm.beta.detach()[:, None, None].expand(-1, F.shape[0], F[0].numel()).clone().requires_grad_()
    outputs = reference.spatial_calibration(S, F, scm.lam.detach(), beta, *literal_settings(scm).values())[:3]
    generator = torch.Generator().manual_seed(seed)
    loss = sum(
        (output * torch.randn(output.shape, generator=generator, dtype=torch.float64)).sum()
        for output in outputs
    )
    loss.backward()
    return beta.grad.abs().sum((1, 2))


def is_smooth(scm: SpatialCalibration, S: Tensor, F: Tensor) -> bool:
    """Tell whether no two tokens share a block's smallest or largest value, but for rounding.

    There the gradient is a choice, which rounding makes. With one class cosines are 1 or -1, and such ties common.
    """
    filtered = scm.trace(S, F).filtered
    ordered = torch.stack(filtered).flatten(2).sort(-1).values
    return bool((ordered.diff(dim=-1)[..., [0, -1]] > 1e-9).all())


def smooth_maps(
    scm: SpatialCalibration, batch: int, classes: int, grid: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Random maps at which the gradient of `scm` is unique; each image is the first that will do."""
    images = (random_maps(1, classes, grid, seed) for seed in range(10_000))
    found = itertools.islice((pair for pair in images if is_smooth(scm, *pair)), batch)
    S, F = zip(*found, strict=True)
    return torch.cat(S), torch.cat(F)


def assert_equal_to_reference(
    scm: SpatialCalibration, S: Tensor, F: Tensor, atol: float = 1e-10, gradient_atol: float = 1e-8
) -> None:
    """float64: outputs and gradients of `scm` against the reference backend's."""
    settings = literal_settings(scm)
    expected = results(module("reference", **settings), S.cpu(), F.cpu())
    actual = results(scm, S, F)
    for name in (*OUTPUTS, "dS", "dF", "dlam"):
        tolerance = (atol if name in OUTPUTS else gradient_atol) * max(1.0, expected[name].abs().max())
        difference = (actual[name] - expected[name]).abs().max()
        assert difference <= tolerance, f"{name} differs by {difference:.1e}"
    scale = beta_terms(module("reference", **settings), S.cpu(), F.cpu())
    excess = (actual["dbeta"] - expected["dbeta"]).abs() / (scale + 1e-300)
    assert (excess <= gradient_atol).all(), f"dbeta differs by {excess.max():.1e} of its cancelling terms"


def error(actual: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Relative root mean square error of every named result."""
    return {
        name: float((actual[name] - exact[name]).norm() / (exact[name].norm() + 1e-300)) for name in exact
    }


def own_bounds(iterations: Sequence[int], dtype: torch.dtype, truncating: bool) -> dict[str, float]:
    """Return float32's tolerance, whatever the reference loses: errors of good code are a third of these.

    The literal z - tanh z cancels in the reference, whose error alone would let an inaccurate kernel pass.
    """
    steep = 10 if max(iterations) > 6 else 1  # more iterations amplify the rounding of lam's gradient
    bounds = {**dict.fromkeys(OUTPUTS, 5e-6), "dS": 1e-5, "dF": 1e-5, "dlam": 2e-5 * steep}
    if dtype != torch.float32:  # rounded once, where they are written
        kept = torch.finfo(dtype).eps * (0.6 if truncating else 0.3)
        bounds |= {"dS": kept, "dF": kept}
    return bounds


def assert_three_way(scm: SpatialCalibration, S: Tensor, F: Tensor, dtype: torch.dtype) -> None:
    """`scm` in `dtype` errs at most twice as much as the reference in that dtype, against float64.

    And never more than `own_bounds`. The terms of beta's gradient cancel: its error is one of their size.
    """
    S, F = S.to(dtype), F.to(dtype)
    # The interpreter truncates where it stores bfloat16, which a GPU rounds.
    truncating = dtype == torch.bfloat16 and scm.settings.backend == "triton" and S.device.type == "cpu"
    truncating &= os.environ.get("TRITON_INTERPRET") == "1"
    settings = literal_settings(scm)
    plain, literal = module("reference", dtype=torch.float32, **settings), module("reference", **settings)
    exact = results(literal, S.cpu().double(), F.cpu().double())
    expected = error(results(plain, S.cpu(), F.cpu()), exact)
    found = results(scm.float(), S, F)
    actual = error(found, exact)
    own = own_bounds(settings["iterations"], dtype, truncating)
    for name, reference_error in expected.items():
        bound = 2 * reference_error + 1e-6
        if truncating and name in ("dS", "dF"):
            bound = own[name]
        bound = min(bound, own.get(name, bound))
        assert actual[name] <= bound, f"{name}: error {actual[name]:.1e}, at most {bound:.1e} is allowed"
    excess = (found["dbeta"] - exact["dbeta"]).abs() / beta_terms(literal, S.cpu().double(), F.cpu().double())
    assert (excess <= 3e-7).all(), f"dbeta: error {excess.max():.1e} of its cancelling terms"
