"""Arithmetic of the kernels on fields, where whole maps would not show its error."""

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from scm_fast.kernels.activation_diffusion import _launch_options
from scm_fast.kernels.fields import tanhshrink

COUNT = 1024


@triton.jit
def tanhshrink_kernel(z, out, LEVELS: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(out + o, tanhshrink(tl.load(z + o), LEVELS))


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 2e-6), (torch.float64, 1e-12)], ids=["float32", "float64"]
)
def test_tanhshrink_keeps_its_digits(device, dtype, bound):
    """Small arguments, where z - tanh z cancels, up to 1, where the continued fraction ends, and beyond it."""
    z = torch.logspace(-1.5, 1.5, COUNT // 2, dtype=dtype, device=device)
    z = torch.cat([z, -z])
    levels = _launch_options(z.new_zeros(1, 2, 4, 4))["LEVELS"]
    out = torch.empty_like(z)
    tanhshrink_kernel[(1,)](z, out, levels, COUNT)
    exact = z.double() - z.double().tanh()
    assert ((out.double() - exact) / exact).abs().max() < bound
