"""The work of the compiled kernels, counted in the emulator: memory sectors, and barriers on the critical path."""

import pytest
import torch

pytest.importorskip("triton")

from scm_fast.backends import implementation

pytestmark = pytest.mark.compiled


def counted(target: str, function) -> dict:
    """Counts of every kernel that the function launches, by its name; a second launch of one gets a 2."""
    from ptx.driver import emulated

    with emulated(target, count=True) as emulator:
        function()
    names = [launched.kernel for launched in emulator.launched]
    keys = [name + " 2" * names[:index].count(name) for index, name in enumerate(names)]
    return {key: launched.counts for key, launched in zip(keys, emulator.launched, strict=True)}


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels-last"])
@pytest.mark.parametrize("classes", [200, 1000])
@pytest.mark.parametrize("grid", [(14, 14), (28, 28)], ids=str)
def test_sectors_of_S_are_used(grid, classes, channels_last):
    """A warp needs at least 80 % of the bytes in the sectors that it requests."""
    S = torch.randn(1, classes, *grid)
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
            assert sectors.efficiency >= 0.8, f"{name}: {sectors.efficiency:.0%} of the {what} sectors"


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
