"""The whole module: every backend against the literal reference, values and gradients."""

import copy
import threading

import pytest
import torch
from calibration_checks import (
    GRADIENTS,
    OUTPUTS,
    assert_equal_to_reference,
    assert_three_way,
    error,
    module,
    random_maps,
    results,
    smooth_maps,
)

from scm_fast import InputError, SpatialCalibration, reference, use_backend
from scm_fast.backends import interpreting
from scm_fast.ops.activation_diffusion import Settings, activation_diffusion
from scm_fast.ops.edge_similarity import edge_similarity
from scm_fast.ops.laplacian import laplacian
from scm_fast.ops.newton_schulz import newton_schulz, newton_schulz_apply
from scm_fast.ops.pooling import pooling
from scm_fast.ops.spatial_calibration import spatial_calibration_backward_op, spatial_calibration_op

GRIDS = [(14, 14), (16, 16), (7, 13), (1, 5), (5, 1)]
KERNELS = ("torch", "triton")


def grid_name(grid: tuple[int, int]) -> str:
    return f"{grid[0]}x{grid[1]}"


@pytest.mark.not_compiled
@pytest.mark.parametrize("detach_init", [False, True], ids=["true-gradient", "detached"])
@pytest.mark.parametrize("iterations", [(0, 0), (1, 1), (4, 4, 4, 4), (6, 6), (0, 1, 4)], ids=str)
@pytest.mark.parametrize("grid", GRIDS, ids=grid_name)
@pytest.mark.parametrize("solver", ["stencil", "dense"])
def test_torch_equals_reference(poisoned_memory, device, solver, grid, iterations, detach_init):
    for batch, classes in ((1, 7), (3, 1), (1, 200), (3, 200)):
        scm = module("torch", iterations, solver=solver, detach_init=detach_init)
        S, F = (x.to(device) for x in smooth_maps(scm, batch, classes, grid))
        assert_equal_to_reference(scm, S, F)


@pytest.mark.not_compiled
@pytest.mark.parametrize("detach_init", [False, True], ids=["true-gradient", "detached"])
@pytest.mark.parametrize("grid", GRIDS, ids=grid_name)
def test_sixteen_iterations_equal_reference(device, grid, detach_init):
    S, F = (x.to(device) for x in random_maps(2, 20, grid))
    assert_equal_to_reference(module("torch", (16, 4, 4, 4), detach_init=detach_init), S, F)


@pytest.mark.parametrize("detach_init", [False, True], ids=["true-gradient", "detached"])
@pytest.mark.parametrize(
    ("grid", "batch", "classes", "iterations", "solver"),
    [
        ((14, 14), 1, 7, (4, 4), "stencil"),
        ((16, 16), 1, 5, (2,), "stencil"),
        ((7, 13), 3, 20, (3, 1), "stencil"),
        ((1, 5), 1, 1, (0, 1, 6), "stencil"),
        ((5, 1), 1, 7, (0, 1, 4), "stencil"),
        ((5, 7), 2, 7, (3, 2), "dense"),
        pytest.param((1, 5), 3, 7, (0, 1, 16), "dense", marks=pytest.mark.not_compiled),
        ((4, 3), 1, 7, (16, 4, 4, 4), "auto"),
        ((2, 2), 1, 3, (1, 0) * 8, "stencil"),
    ],
    ids=str,
)
def test_triton_equals_reference(
    poisoned_memory, device, launched, grid, batch, classes, iterations, solver, detach_init
):
    S, F = (x.to(device) for x in random_maps(batch, classes, grid))
    assert_equal_to_reference(module("triton", iterations, solver=solver, detach_init=detach_init), S, F)
    dense = {"laplacian_forward", "laplacian_backward", "product", "complement_vector"}
    of_maps = {name for name in IN_ONE_LAUNCH if not name.startswith("activation_diffusion")}
    expected = {"stencil": IN_ONE_LAUNCH, "dense": of_maps | dense, "auto": IN_ONE_LAUNCH | dense}
    assert launched() == expected[solver]


IN_ONE_LAUNCH = {
    "edge_similarity_forward",
    "activation_diffusion_forward",
    "matrix_vector",
    "activation_diffusion_backward",
    "edge_similarity_backward",
}


def test_triton_serves_grids_beyond_a_thousand_tokens(poisoned_memory, device, launched):
    """There the kernels keep in memory what they hold in registers on smaller grids."""
    S, F = (x.to(device) for x in random_maps(1, 3, (33, 35)))
    assert_three_way(module("triton", (2, 1)), S, F, torch.float32)
    assert launched() == IN_ONE_LAUNCH


def test_triton_serves_64_by_64_tokens(poisoned_memory, device, launched):
    """Kernels are as exact as torch in float32; dense matrices of so many tokens would take minutes."""
    S, F = random_maps(1, 2, (64, 64))
    exact = results(module("torch", (2,)), S, F)
    bounds = error(results(module("torch", (2,), torch.float32), S.float(), F.float()), exact)
    # The interpreter adds 4,096 numbers one after the other, which a GPU adds in a tree.
    slack = 64 * 2**-24 if interpreting() else 1e-6
    actual = results(module("triton", (2,), torch.float32), S.float().to(device), F.float().to(device))
    for name, found in error(actual, exact).items():
        assert found <= 2 * bounds[name] + slack, f"{name}: error {found:.1e}, torch {bounds[name]:.1e}"
    assert launched() == IN_ONE_LAUNCH


def test_triton_in_float64_beyond_a_thousand_tokens(device, launched):
    """Block by block in torch: the kernel of all blocks refuses them."""
    S, F = (x.to(device) for x in random_maps(1, 3, (33, 35)))
    assert_equal_to_reference(module("triton", (2,)), S, F)
    assert launched() == IN_ONE_LAUNCH - {"activation_diffusion_forward", "activation_diffusion_backward"}


def assert_sound_at(batch: int, classes: int, grid: tuple[int, int], device: str) -> None:
    """Triton in float32 is as exact as torch is, and gives the same bits every time: no two threads race."""
    S, F = (x.to(device) for x in random_maps(batch, classes, grid))
    iterations = (4, 4)
    exact = results(module("torch", iterations), S, F)
    bounds = error(results(module("torch", iterations, torch.float32), S.float(), F.float()), exact)
    first, *others = (
        results(module("triton", iterations, torch.float32), S.float(), F.float()) for _ in range(3)
    )
    for name, found in error(first, exact).items():
        if name != "dbeta":  # its terms cancel: in float32 its error is a matter of luck
            assert found <= 3 * bounds[name] + 1e-6, f"{name}: error {found:.1e}, torch {bounds[name]:.1e}"
    for other in others:
        assert all(torch.equal(other[name], first[name]) for name in first)


@pytest.mark.not_compiled
def test_same_bits_every_time(poisoned_memory, device):
    assert_sound_at(2, 5, (3, 4), device)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("batch", "classes", "grid"),
    [(128, 200, (14, 14)), (16, 1000, (14, 14)), (32, 200, (28, 28)), (4, 200, (37, 37)), (4, 50, (64, 64))],
    ids=str,
)
def test_training_shapes(batch, classes, grid):
    """Too large for the interpreter."""
    assert_sound_at(batch, classes, grid, "cuda")


@pytest.mark.not_compiled
@pytest.mark.parametrize("iterations", [(4, 4, 4, 4), (1, 6)], ids=str)
@pytest.mark.parametrize("grid", [(14, 14), (7, 13)], ids=grid_name)
def test_torch_float32_error(device, grid, iterations):
    S, F = (x.to(device) for x in random_maps(3, 50, grid))
    assert_three_way(module("torch", iterations), S, F, torch.float32)


@pytest.mark.not_compiled
@pytest.mark.parametrize("detach_init", [False, True], ids=["true-gradient", "detached"])
def test_float32_error_at_sixteen_iterations(device, detach_init):
    """Maps are as smooth as a network's; noise, whose p = 16 inverse is ill-conditioned, is another matter."""
    S, F = (x.to(device) for x in random_maps(3, 50, (4, 4)))
    S = torch.nn.functional.interpolate(S, (14, 14), mode="bicubic")
    F = torch.nn.functional.interpolate(F.unsqueeze(1), (14, 14), mode="bicubic").squeeze(1)
    assert_three_way(module("torch", (16, 4, 4, 4), detach_init=detach_init), S, F, torch.float32)


@pytest.mark.parametrize("grid", [(14, 14), (1, 5)], ids=grid_name)
def test_triton_float32_error(poisoned_memory, device, launched, grid):
    S, F = (x.to(device) for x in random_maps(2, 20, grid))
    assert_three_way(module("triton", (4, 4)), S, F, torch.float32)
    assert launched() == IN_ONE_LAUNCH


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_semantic_map(device, launched, backend, dtype):
    """Only S is rounded: everything after it is as exact as in float32."""
    S, F = (x.to(device) for x in random_maps(2, 20, (6, 7)))
    assert_three_way(module(backend, (4, 4)), S, F, dtype)
    assert launched() == (IN_ONE_LAUNCH if backend == "triton" else set())


# Of p = 7 and 1 on a few tokens, `auto` takes dense matrices for the first.
GRADCHECK_SETTINGS = {
    "stencil": Settings([1, 1], 0.05, solver="stencil"),
    "dense": Settings([1, 1], 0.05, solver="dense"),
    "both": Settings([7, 1], 0.002),
}


@pytest.mark.not_compiled
@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("case", GRADCHECK_SETTINGS)
def test_gradcheck(device, backend, case):
    S, F = (x.to(device).requires_grad_() for x in random_maps(1, 2, (2, 2)))
    lam = torch.tensor([0.9, 1.2], dtype=torch.float64, device=device, requires_grad=True)
    beta = torch.tensor([0.4, 0.6], dtype=torch.float64, device=device, requires_grad=True)
    settings = GRADCHECK_SETTINGS[case]._replace(backend=backend)

    def outputs(S, F, lam, beta):
        return spatial_calibration_op(S, F, lam, beta, *settings)[:3]

    assert torch.autograd.gradcheck(outputs, (S, F, lam, beta), atol=1e-5, rtol=1e-4)


def layouts(S: torch.Tensor) -> dict[str, torch.Tensor]:
    B, C, H, W = S.shape
    wide = torch.zeros(B, 2 * C, H, W + 3, dtype=S.dtype, device=S.device)
    wide[:, ::2, :, 1:-2] = S
    return {
        "channels-last": S.to(memory_format=torch.channels_last),
        "tokens-by-channels": S.flatten(2).mT.contiguous().mT.view(B, C, H, W),
        "transposed-grid": S.mT.contiguous().mT,
        "strided": wide[:, ::2, :, 1:-2],
        "expanded": S[:1].expand(B, -1, -1, -1),
    }


@pytest.mark.parametrize("backend", KERNELS)
def test_memory_layouts(device, backend):
    S, F = (x.to(device) for x in random_maps(2, 6, (4, 5)))
    strided_F = torch.stack((F, F), -1)[..., 0].mT.contiguous().mT
    scm = module(backend, (1, 1))
    for name, S_view in layouts(S).items():
        expected = results(scm, S_view.contiguous(), F)
        actual = results(scm, S_view, strided_F)
        for key in expected:
            torch.testing.assert_close(actual[key], expected[key], rtol=1e-9, atol=1e-9, msg=f"{name}: {key}")


def degenerate_inputs() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    S, F = random_maps(2, 4, (3, 4))
    zero_token = S.clone()
    zero_token[:, :, 1, 2] = 0
    return {
        "constant F": (S, torch.full_like(F, 0.3)),
        "zero F": (S, torch.zeros_like(F)),
        "zero token": (zero_token, F),
        "zero S": (torch.zeros_like(S), F),
        "constant S": (torch.ones_like(S), F),
        "one token": (S[..., :1, :1], F[..., :1, :1]),
    }


@pytest.mark.parametrize("case", degenerate_inputs())
@pytest.mark.parametrize("solver", ["stencil", "dense"])
@pytest.mark.parametrize("backend", ["reference", *KERNELS])
def test_degenerate_inputs_are_finite(device, backend, solver, case):
    S, F = degenerate_inputs()[case]
    scm = SpatialCalibration(2, 2, backend=backend, solver=solver).double()
    actual = results(scm, S.to(device), F.to(device))
    assert all(value.isfinite().all() for value in actual.values())
    expected = results(SpatialCalibration(2, 2, backend="reference").double(), S, F)
    for name in (*OUTPUTS, "dS", "dF", "dlam"):
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-7, atol=1e-8, msg=name)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", ["S", "F"])
@pytest.mark.parametrize("solver", ["stencil", "dense"])
@pytest.mark.parametrize("backend", ["reference", *KERNELS])
def test_bad_values_reach_the_logits(device, backend, solver, place, value):
    S, F = random_maps(2, 4, (3, 4))
    (S if place == "S" else F)[0, ..., 1, 2] = value
    scm = SpatialCalibration(2, 2, backend=backend, solver=solver).double().to(device)
    logits = scm(S.to(device), F.to(device)).logits
    assert not logits[0].isfinite().any()
    assert logits[1].isfinite().all()


@pytest.mark.parametrize(
    ("S_shape", "F_shape", "message"),
    [
        ((2, 3, 4), (2, 4, 4), r"S must have shape \(B, C, H, W\), got \(2, 3, 4\)"),
        ((2, 3, 4, 5), (2, 20), r"F must have shape \(B, H, W\), got \(2, 20\)"),
        ((2, 3, 4, 5), (2, 5, 4), r"F must have shape \(2, 4, 5\)"),
        ((2, 3, 4, 5), (1, 4, 5), r"F must have shape \(2, 4, 5\)"),
        ((0, 3, 4, 5), (0, 4, 5), "S must not be empty"),
    ],
)
def test_wrong_shapes(S_shape, F_shape, message):
    with pytest.raises(ValueError, match=message):
        SpatialCalibration()(torch.zeros(S_shape), torch.zeros(F_shape))


def test_wrong_dtype_and_device():
    S, F = torch.zeros(1, 2, 3, 3), torch.zeros(1, 3, 3)
    scm = SpatialCalibration()
    with pytest.raises(ValueError, match=r"S must have a floating-point dtype, got torch.int64"):
        scm(S.long(), F)
    with pytest.raises(ValueError, match=r"F must have a floating-point dtype, got torch.bool"):
        scm(S, F.bool())
    with pytest.raises(ValueError, match="S and F must be on one device, got meta and cpu"):
        scm(S.to("meta"), F)
    with pytest.raises(ValueError, match="S is on meta, lam on cpu and beta on cpu"):
        scm(S.to("meta"), F.to("meta"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, "alpha must be positive"),
        ({"alpha": -1.0}, "alpha must be positive"),
        ({"alpha": float("nan")}, "alpha must be a finite number"),
        ({"alpha": "0.1"}, "alpha must be a finite number, got '0.1'"),
        ({"beta": 0.0}, "beta must not be 0"),
        ({"iterations": True}, "iterations must be non-negative"),
        ({"iterations": 16, "solver": "stencil"}, "solver='stencil' takes at most 10 iterations"),
        ({"iterations": -1}, "iterations must be non-negative"),
        ({"iterations": (4, 4)}, "iterations must be an int or one per block: got 2 for num_blocks=4"),
        ({"iterations": 2.5}, "iterations must be"),
        ({"num_blocks": 0}, "num_blocks must be a positive integer"),
        ({"num_blocks": True}, "num_blocks must be a positive integer, got True"),
        ({"lam": None}, "lam must be a finite number, got None"),
        ({"beta": True}, "beta must be a finite number, got True"),
        ({"detach_init": "no"}, "detach_init must be true or false, got 'no'"),
        ({"solver": ["dense"]}, r"solver must be one of stencil, dense or auto, got \['dense'\]"),
        ({"solver": "sparse"}, "solver must be one of stencil, dense or auto, got 'sparse'"),
        ({"backend": "cuda"}, "backend must be one of reference, torch, triton or auto, got 'cuda'"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(InputError, match=message):
        SpatialCalibration(**settings)


@pytest.mark.not_compiled
@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_keeps_fields_in_float32(device, backend, dtype):
    S, F = (x.to(device, torch.float32) for x in random_maps(2, 8, (4, 5)))
    scm = module(backend, (4, 1), torch.float32, solver="dense" if backend == "torch" else "auto")
    expected = results(scm, S, F)
    with torch.autocast(device, dtype):
        actual = results(scm, S, F)
        out = scm(S.to(dtype).requires_grad_(), F.to(dtype))
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name])
    assert all(value.dtype == torch.float32 for value in out)
    S_half, F_half = S.to(dtype).requires_grad_(), F.to(dtype).requires_grad_()
    scm(S_half, F_half).logits.sum().backward()
    assert S_half.grad.dtype == F_half.grad.dtype == dtype


@pytest.mark.one_graph
@pytest.mark.not_compiled
@pytest.mark.parametrize("backend", ["reference", *KERNELS])
def test_compiles_to_one_graph(device, backend):
    S, F = (x.to(device) for x in random_maps(2, 4, (3, 4)))
    scm = module(backend, (1, 2))
    compiled = torch.compile(scm, fullgraph=True, backend="aot_eager")
    expected, actual = results(scm, S, F), results(compiled, S, F)
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-9, atol=1e-9)


def each_op(backend, device):
    """A small call of every op, as a function of one tensor."""
    S, F = (x.to(device) for x in random_maps(1, 3, (2, 3)))
    edges = edge_similarity(S, backend)
    L = laplacian(edges, torch.ones((), dtype=S.dtype, device=S.device), backend)
    lam = torch.ones(2, dtype=S.dtype, device=S.device)
    settings = Settings([1, 7], 0.002, backend=backend)
    return {
        "edge_similarity": (lambda x: edge_similarity(x, backend), S),
        "laplacian": (lambda x: laplacian(x, lam[0], backend), edges),
        "newton_schulz": (lambda x: newton_schulz(x, 2, 0.1, backend=backend), L),
        "newton_schulz_apply": (lambda x: newton_schulz_apply(x, F.flatten(1), 2, 0.1, backend=backend), L),
        "activation_diffusion": (lambda x: activation_diffusion(x, edges, lam, lam, settings)[1], F),
        "pooling": (lambda x: pooling(x, F, backend), S),
    }


@pytest.mark.one_graph
@pytest.mark.not_compiled
@pytest.mark.parametrize("name", each_op("torch", "cpu"))
@pytest.mark.parametrize("backend", KERNELS)
def test_every_op_compiles_to_one_graph(device, backend, name):
    function, given = each_op(backend, device)[name]
    found = []
    for call in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        given = given.detach().requires_grad_()
        output = call(given)
        output.square().sum().backward()
        found.append((output.detach(), given.grad))
    torch.testing.assert_close(*found)


@pytest.mark.not_compiled
@pytest.mark.parametrize("case", GRADCHECK_SETTINGS)
@pytest.mark.parametrize("backend", KERNELS)
def test_opcheck(device, backend, case):
    S, F = (x.to(device).requires_grad_() for x in random_maps(2, 3, (2, 3)))
    lam = torch.tensor([0.9, 1.2], dtype=torch.float64, device=S.device, requires_grad=True)
    beta = torch.tensor([0.4, 0.6], dtype=torch.float64, device=S.device, requires_grad=True)
    settings = GRADCHECK_SETTINGS[case]._replace(backend=backend)
    torch.library.opcheck(spatial_calibration_op, (S, F, lam, beta, *settings))


def test_trace_shows_every_block():
    S, F = random_maps(2, 5, (4, 6))
    for backend in ("reference", "torch"):
        scm = module(backend, (2, 3, 4))
        trace, out = scm.trace(S, F), scm(S, F)
        assert len(trace.semantic) == len(trace.attention) == len(trace.filtered) == 3
        torch.testing.assert_close(trace.attention[-1], out.attention)
        torch.testing.assert_close(trace.semantic[-1].mean((2, 3)), out.logits)
        S_l, F_l = S.flatten(2), reference.min_max(F.flatten(1))
        for block in range(3):
            S_l, F_l, f = reference.diffusion_block(
                S_l, F_l, scm.lam[block], scm.beta[block], (4, 6), 2 + block, 0.002, False
            )
            torch.testing.assert_close(trace.semantic[block].flatten(2), S_l.detach())
            torch.testing.assert_close(trace.attention[block].flatten(1), F_l.detach())
            torch.testing.assert_close(trace.filtered[block].flatten(1), f.detach())


def test_presets():
    paper = SpatialCalibration.from_preset("paper")
    assert paper.settings.iterations == (4, 4, 4, 4)
    assert not paper.settings.detach_init
    official = SpatialCalibration.from_preset("official", backend="torch", alpha=0.01)
    assert official.settings.iterations == (16, 4, 4, 4)
    assert official.settings.detach_init
    assert official.settings.alpha == 0.01
    with pytest.raises(InputError, match="preset must be one of paper, official, got 'papers'"):
        SpatialCalibration.from_preset("papers")
    with pytest.raises(
        InputError, match=r"the calibration has no method; it has num_blocks, iterations, .*solver"
    ):
        SpatialCalibration.from_preset("paper", method="dense")


def test_copies_and_state_dict_round_trip():
    S, F = random_maps(2, 5, (4, 6))
    scm = module("torch", (2, 3))
    other = SpatialCalibration(2, [2, 3], backend="torch").double()
    assert set(scm.state_dict()) == {"lam", "beta"}
    other.load_state_dict(scm.state_dict())
    expected = results(scm, S, F)
    for twin in (copy.deepcopy(scm), other):
        actual = results(twin, S, F)
        assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_deterministic_and_thread_safe():
    """Many threads at once, each with its own backend switch, give bit for bit what one gives alone."""
    S, F = random_maps(3, 20, (7, 13))
    scm = module("auto", (4, 4))
    expected = {}
    for name in ("reference", "torch"):
        with use_backend(name):
            expected[name] = results(copy.deepcopy(scm), S, F)
    assert not torch.equal(expected["reference"]["dS"], expected["torch"]["dS"])
    failures = []

    def work(name):
        for _ in range(3):
            with use_backend(name):
                actual = results(copy.deepcopy(scm), S, F)
            if not all(torch.equal(actual[key], expected[name][key]) for key in actual):
                failures.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("reference", "torch") * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", KERNELS)
def test_saturated_filter(poisoned_memory, device, backend, dtype):
    """|z| far beyond 1, where tanhshrink is a straight line: gradients as good as the reference's."""
    S, F = (x.to(device) for x in random_maps(1, 5, (4, 4)))
    settings = {"alpha": 0.1, "solver": "stencil"}
    scm, plain = (module(name, (3,), dtype, **settings) for name in (backend, "reference"))
    exact = module("reference", (3,), **settings)
    for each in (scm, plain, exact):
        torch.nn.init.constant_(each.lam, 3.0)
    expected = results(exact, S.cpu(), F.cpu())
    bounds = error(results(plain, S.cpu().to(dtype), F.cpu().to(dtype)), expected)
    for name, found in error(results(scm, S.to(dtype), F.to(dtype)), expected).items():
        if name == "dbeta" and dtype == torch.float64:
            continue  # its terms cancel, and in float64 the reference is its own measure
        assert found <= 2 * bounds[name] + (1e-9 if dtype == torch.float64 else 1e-6), name


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("scale", [1e-20, 1e15])
def test_scale_of_the_semantic_map(device, backend, scale):
    """Cosines do not see it: neither norms nor their inverses may overflow."""
    S, F = (x.to(device, torch.float32) for x in random_maps(2, 4, (3, 4)))
    scm = module(backend, (1, 2), torch.float32)
    expected, actual = results(scm, S, F), results(scm, S * scale, F)
    for name in ("attention", "gain"):
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-2, atol=1e-2)
    assert actual["dS"].isfinite().all()


@pytest.mark.parametrize("backend", KERNELS)
def test_strided_inputs_of_every_kind(device, backend):
    """lam and beta as slices, F transposed; the backward op's fake promises the strides that it gives."""
    S, F = (x.to(device) for x in random_maps(2, 3, (3, 2)))
    F = F.mT.contiguous().mT
    lam, beta = torch.tensor([[0.9, 9, 1.2], [0.4, 9, 0.6]], dtype=torch.float64, device=S.device)[:, ::2]
    settings = Settings([1, 2], 0.002, backend=backend)
    strided = spatial_calibration_op(S, F, lam, beta, *settings)
    contiguous = spatial_calibration_op(S, F.contiguous(), lam.clone(), beta.clone(), *settings)
    torch.testing.assert_close(strided, contiguous)
    logits, _, gain, f, edges, inverse_norm = strided
    arguments = (S, F, lam, beta, gain, f, edges, inverse_norm, logits, None, None, *settings)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(spatial_calibration_backward_op, arguments, test_utils=tests)


def test_only_used_outputs_need_gradients(device):
    S, F = random_maps(2, 5, (4, 6))
    for output in OUTPUTS:
        gradients = {}
        for backend in ("reference", *KERNELS):
            scm = module(backend, (1, 2)).to(device)
            inputs = [x.to(device).requires_grad_() for x in (S, F)]
            getattr(scm(*inputs), output).square().sum().backward()
            gradients[backend] = [x.grad.cpu() for x in (*inputs, scm.lam, scm.beta) if x.grad is not None]
        for backend in KERNELS:
            assert len(gradients[backend]) == len(GRADIENTS)
            for actual, expected in zip(gradients[backend], gradients["reference"], strict=True):
                torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-8)
