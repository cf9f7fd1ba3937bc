"""Choosing a backend: argument, context, environment; loud when what was asked for cannot serve."""

import subprocess
import sys

import pytest
import torch
from without_triton import WITHOUT_TRITON

import scm_fast
from scm_fast import InputError, SpatialCalibration, available_backends, backends, use_backend
from scm_fast.backends import requested_backend, resolve_backend

CPU = torch.device("cpu")


def test_order_of_precedence(monkeypatch):
    monkeypatch.setenv("SCM_FAST_BACKEND", "torch")
    assert requested_backend() == ("torch", "SCM_FAST_BACKEND")
    with use_backend("reference"):
        assert requested_backend() == ("reference", "use_backend")
        assert requested_backend("triton") == ("triton", "the backend argument")
        with use_backend("torch"):
            assert requested_backend() == ("torch", "use_backend")
        assert requested_backend().name == "reference"
    assert requested_backend().name == "torch"
    monkeypatch.delenv("SCM_FAST_BACKEND")
    assert requested_backend() == ("auto", "nobody")


def test_auto_in_a_context_leaves_the_choice_to_the_variable(monkeypatch):
    monkeypatch.setenv("SCM_FAST_BACKEND", "reference")
    with use_backend("auto"):
        assert requested_backend() == ("reference", "SCM_FAST_BACKEND")
        assert resolve_backend("auto", CPU) == "reference"
    with use_backend("torch"), use_backend("auto"):
        assert requested_backend() == ("reference", "SCM_FAST_BACKEND")


def test_switch_changes_what_runs(monkeypatch):
    S, F = torch.randn(1, 3, 4, 4), torch.rand(1, 4, 4)
    called = []
    monkeypatch.setattr(
        scm_fast.reference, "spatial_calibration", lambda *args: called.append(args) or [torch.zeros(1)] * 4
    )
    SpatialCalibration()(S, F)
    assert not called
    with use_backend("reference"):
        SpatialCalibration()(S, F)
        SpatialCalibration(backend="torch")(S, F)
    assert len(called) == 1


def test_unknown_names_say_where_they_came_from(monkeypatch):
    with pytest.raises(InputError, match="backend must be one of reference, torch, triton or auto, got 'x'"):
        use_backend("x").__enter__()
    monkeypatch.setenv("SCM_FAST_BACKEND", "cuda")
    with pytest.raises(InputError, match=r"SCM_FAST_BACKEND must be one of .* got 'cuda'"):
        requested_backend()


def test_asking_for_triton_where_it_cannot_serve(monkeypatch):
    monkeypatch.setattr(backends, "interpreting", lambda: False)
    with pytest.raises(InputError, match=r"backend 'triton' was asked for and cannot serve: .* on 'cpu'"):
        resolve_backend("triton", CPU)
    assert resolve_backend("auto", CPU) == "torch"


def test_the_interpreter_is_never_chosen_by_itself(monkeypatch):
    monkeypatch.setattr(backends, "interpreting", lambda: True)
    assert resolve_backend("auto", CPU) == "torch"
    assert resolve_backend("triton", CPU) == "triton"


def test_available_backends_says_why():
    found = available_backends()
    assert list(found) == ["reference", "torch", "triton"]
    assert found["reference"] == found["torch"] == ""


CALIBRATION_WITHOUT_TRITON = f"""{WITHOUT_TRITON}
import torch, scm_fast
scm = scm_fast.SpatialCalibration()
scm(torch.randn(1, 3, 4, 4), torch.rand(1, 4, 4)).logits.sum().backward()
print(scm_fast.available_backends()["triton"])
assert "scm_fast.kernels" not in sys.modules
"""


def test_works_without_triton():
    run = subprocess.run([sys.executable, "-c", CALIBRATION_WITHOUT_TRITON], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "triton is not installed" in run.stdout


def test_an_old_triton_is_named(monkeypatch, tmp_path):
    """Torch 2.6 brings a Triton without `target_info`, which the kernels import."""
    (tmp_path / "triton" / "language").mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    why_no_kernels = backends.why_no_kernels.__wrapped__
    assert why_no_kernels() == (
        "this triton is too old: the kernels need the one of torch 2.9, or a later one"
    )
    (tmp_path / "triton" / "language" / "target_info.py").touch()
    assert why_no_kernels() == ""
