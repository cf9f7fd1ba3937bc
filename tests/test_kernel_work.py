"""The work of the compiled kernels, counted in the emulator: memory sectors, and barriers on the critical path."""

import re

import pytest
import torch

pytest.importorskip("triton")

from kernel_launches import Step, launch_dense

from scm_fast.backends import implementation

pytestmark = pytest.mark.compiled

KERNELS = (
    "edge_similarity_forward",
    "edge_similarity_backward",
    "matrix_vector",
    "activation_diffusion_forward",
    "activation_diffusion_backward",
    "laplacian_forward",
    "laplacian_backward",
    "product",
    "complement_vector",
)


def counted(target: str, function) -> dict:
    """Counts of every kernel that the function launches, by its name; a second launch of one gets a 2."""
    from ptx.driver import emulated

    with emulated(target, count=True) as emulator:
        function()
    names = [launched.kernel for launched in emulator.launched]
    keys = [name + " 2" * names[:index].count(name) for index, name in enumerate(names)]
    return {key: launched.counts for key, launched in zip(keys, emulator.launched, strict=True)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels-last"])
@pytest.mark.parametrize("classes", [200, 1000])
@pytest.mark.parametrize("grid", [(14, 14), (28, 28)], ids=str)
def test_sectors_of_S_are_used(grid, classes, channels_last, dtype):
    """At least 80 % of the bytes in the sectors that a warp requests are wanted.

    In half precision, 70 % of contiguous maps, which no model makes: 32 tokens of a channel are 64 bytes, which
    begin in the middle of a sector in three channels of four, and then touch three.
    """
    wanted = 0.7 if dtype == torch.bfloat16 and not channels_last else 0.8
    S = torch.randn(1, classes, *grid).to(dtype)
    S = S.to(memory_format=torch.channels_last) if channels_last else S
    weight, dpooled, dedges = torch.rand(1, *grid), torch.rand(1, classes), torch.rand(1, 2, *grid)
    similarity, pooling = (implementation(op, "triton") for op in ("edge_similarity", "pooling"))

    def step():
        edges, inverse_norm = similarity.forward(S)
        pooling.pool(S, weight)
        pooling.pool_weight(S, dpooled)
        similarity.backward(dedges, S, edges, inverse_norm, weight, dpooled)

    counts = counted("sm_90", step)
    assert list(counts) == [
        "edge_similarity_forward",
        "matrix_vector",
        "matrix_vector 2",
        "edge_similarity_backward",
    ]
    for name, count in counts.items():
        for what, sectors in count.sectors.items():
            assert sectors.efficiency >= wanted, f"{name}: {sectors.efficiency:.0%} of the {what} sectors"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("classes", [200, 1000])
def test_a_training_map_is_loaded_and_stored_16_bytes_at_a_time(classes, dtype):
    """The layout of `test_a_real_heads_map_is_read_in_vectors_of_16_bytes`; dS is stored so too, or by 8 bytes."""
    from ptx.driver import emulated
    from ptx.parser import parse

    kernels = {}

    def note(ptx: str) -> str:
        kernels[parse(ptx).name] = ptx
        return ptx

    with emulated("sm_90", change=note) as emulator:
        Step(1, classes, dtype=dtype, channels_last=True).launch()
    assert len(emulator.launched) == 6
    for name in ("edge_similarity_forward_kernel", "edge_similarity_backward_kernel"):
        assert "ld.global.v4.b32" in kernels[name]
        assert "global.b16" not in kernels[name]
    assert re.search(r"st\.global\.v[24]\.b32", kernels["edge_similarity_backward_kernel"])


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "again"])
def test_images_beyond_what_32_bits_address(keep):
    """Image 2^27 of a batch begins 2^31 elements and more after the first, in every tensor of a training step."""
    from ptx.driver import emulated

    step = Step(1, 16, (4, 4), (0,) * 8, torch.float32, channels_last=True, keep=keep)
    with emulated("sm_90", first_image=1 << 27) as emulator:
        step.launch()
        launch_dense((4, 4), detach_init=False, images=1)
    assert {launched.kernel for launched in emulator.launched} == set(KERNELS)


def diffusion_counts(target: str, grid: tuple[int, int], iterations: list[int]) -> dict:
    kernels = implementation("activation_diffusion", "triton")
    F, edges = torch.rand(1, *grid), torch.rand(1, 2, *grid)
    lam, beta = torch.ones(len(iterations)), torch.full((len(iterations),), 0.5)

    def step():
        attention, gain, f = kernels.forward(F, edges, lam, beta, iterations, 0.002)
        kernels.backward(F, edges, lam, beta, f, attention, gain, iterations, 0.002, False)

    return counted(target, step)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_barriers_of_four_blocks(target):
    counts = diffusion_counts(target, (14, 14), [4, 4, 4, 4])
    assert counts["activation_diffusion_forward"].barriers_per_program <= 350
    assert counts["activation_diffusion_backward"].barriers_per_program <= 700


@pytest.mark.parametrize("grid", [(14, 14), (33, 33)], ids=["in registers", "in memory"])
def test_barriers_of_a_product(grid):
    """One more iteration of two products each, forward; backward two more on the way there and two back."""
    few, more = (diffusion_counts("sm_90", grid, [p]) for p in (1, 2))  # 2 and 4 terms
    for name, products in (("activation_diffusion_forward", 2 * 2), ("activation_diffusion_backward", 4 * 2)):
        added = more[name].barriers_per_program - few[name].barriers_per_program
        assert 0 < added <= 3 * products
