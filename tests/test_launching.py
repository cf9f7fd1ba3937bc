"""Launches of kernels: on which device, on which layout of a map, in how many pieces."""

import contextlib
import importlib
from types import SimpleNamespace

import pytest
import torch
from calibration_checks import module, random_maps, results

pytest.importorskip("triton")

from kernel_launches import Step, launch_cls_row, launch_dense, recorded_launches

from scm_fast.environment import OPS
from scm_fast.kernels import activation_diffusion, launching


class StandIn:
    """Stand in for a kernel, and note the devices that were made current when it was launched."""

    def __init__(self, name: str, current: list, launched: dict) -> None:
        self.name, self.current, self.launched = name, current, launched

    def __getitem__(self, grid):
        def launch(*tensors, **_):
            self.launched[self.name] = (list(self.current), [tensors[0].device])

        return launch


def test_every_kernel_is_launched_on_the_device_of_its_tensors(monkeypatch):
    current, launched, expected = [], {}, set()

    @contextlib.contextmanager
    def on_device_of(tensor):
        current.append(tensor.device)
        yield
        current.pop()

    for op in OPS:
        kernels = importlib.import_module(f"scm_fast.kernels.{op}")
        for name in [name for name in vars(kernels) if name.endswith("_kernel")]:
            expected.add(name)
            monkeypatch.setattr(kernels, name, StandIn(name, current, launched))
            monkeypatch.setattr(kernels, "on_device_of", on_device_of)
    Step().launch()
    launch_dense((3, 4), detach_init=False)
    launch_cls_row(1, 2, 5, 8, torch.float32)
    assert set(launched) == expected
    for name, (made_current, of_tensors) in launched.items():
        assert made_current == of_tensors, name


def test_the_device_is_made_current(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda device: ("current", device))
    assert launching.on_device_of(SimpleNamespace(is_cuda=True, device="cuda:1")) == ("current", "cuda:1")
    with launching.on_device_of(torch.zeros(1)) as nothing:
        assert nothing is None


@pytest.mark.gpu
def test_second_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    S, F = random_maps(2, 5, (4, 6))
    scm = module("triton", (2, 16))
    with torch.cuda.device(0):
        actual = results(scm, S.to("cuda:1"), F.to("cuda:1"))
    expected = results(module("torch", (2, 16)), S, F)
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-7, atol=1e-7)


def test_layout_of_tokens():
    S = torch.zeros(2, 3, 4, 5)
    assert launching.Layout.of_tokens(S) == (1, 1, 0)
    assert launching.Layout.of_tokens(S.to(memory_format=torch.channels_last)) == (1, 3, 0)
    assert launching.Layout.of_tokens(S[..., 1:]) == (4, 5, 1)
    assert launching.Layout.of_tokens(S.mT) == (4, 1, 5)
    assert launching.Layout.of_tokens(S[..., 2:3]) == (1, 5, 0)
    assert launching.Layout.of_tokens(S[..., 2:3, 1:]) == (1, 1, 0)


def test_scratch_memory_is_bounded():
    """p = 10 on 64 x 64 tokens, 128 images: would be 4.3 GB at once."""
    with recorded_launches() as launches:
        Step(128, 1, (64, 64), (10,)).launch()
    diffusion = [launch for launch in launches if launch.name.startswith("activation_diffusion")]
    assert {launch.name for launch in diffusion} == {
        "activation_diffusion_forward",
        "activation_diffusion_backward",
    }
    for launch in diffusion:
        scratch = launch.arguments["scratch"]
        assert launch.programs <= scratch.shape[0]
        assert scratch.nbytes <= activation_diffusion.MAX_SCRATCH_BYTES == 256 * 2**20
    assert sum(launch.programs for launch in diffusion) == 2 * 128


def test_pieces_give_the_same(monkeypatch):
    S, F = random_maps(5, 3, (3, 4))
    whole = results(module("triton", (2, 1)), S, F)
    monkeypatch.setattr(activation_diffusion, "MAX_SCRATCH_BYTES", 16 * 8 * 60)  # two or three images
    with recorded_launches(run=True) as launches:
        pieces = results(module("triton", (2, 1)), S, F)
    programs = [
        launch.programs for launch in launches if launch.name.startswith("activation_diffusion_backward")
    ]
    assert len(programs) > 1
    assert sum(programs) == 5
    assert all(torch.equal(pieces[name], whole[name]) for name in whole)
