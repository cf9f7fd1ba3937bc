"""`scm-fast info` as a user runs it, and on machines that this one is not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from without_triton import WITHOUT_TRITON

from scm_fast import available_backends, backends, environment, use_backend
from scm_fast.cli import main

ROOT = Path(__file__).parents[1]


@pytest.fixture
def compiled(monkeypatch):
    """Run as where kernels are compiled: the tests' own processes interpret them."""
    monkeypatch.setattr(backends, "interpreting", lambda: False)
    monkeypatch.setattr(environment, "interpreting", lambda: False)
    monkeypatch.delenv("SCM_FAST_BACKEND", raising=False)


@pytest.fixture
def info(capsys):
    def run(*arguments):
        assert main(["info", *arguments]) == 0
        return capsys.readouterr().out

    return run


def test_json_says_what_the_text_says(info, monkeypatch):
    monkeypatch.setenv("SCM_FAST_BACKEND", "torch")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere/triton")
    monkeypatch.setenv("HF_TOKEN", "a-secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    found, text = json.loads(info("--json")), info()
    assert list(found) == ["versions", "devices", "backends", "auto", "caches", "environment"]
    assert found["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert found["backends"] == available_backends()
    assert found["devices"][0]["threads"] == torch.get_num_threads()
    assert found["caches"]["triton"] == "/somewhere/triton"
    assert found["environment"]["SCM_FAST_BACKEND"] == "torch"
    assert found["auto"]["laplacian"] == {"backend": "torch", "why": "SCM_FAST_BACKEND asks for it"}
    assert "a-secret" not in text + json.dumps(found)
    words = text.split()
    for part in (found["versions"], found["caches"], found["environment"]):
        assert all(word in words for value in part.values() if value for word in value.split())
    for op, choice in found["auto"].items():
        line = next(line for line in text.splitlines() if line.split()[:1] == [op])
        assert line.split(maxsplit=1)[1] == f"{choice['backend']}: {choice['why']}"


def test_every_kernel_has_its_op():
    modules = {path.stem for path in (ROOT / "kernels").glob("*.py") if "@triton.jit" in path.read_text()}
    assert modules - {"fields", "launching"} == set(environment.OPS)


def test_what_auto_takes_and_why(compiled, monkeypatch):
    pytest.importorskip("triton")
    cpu, gpu = (environment.chosen_backends(torch.device(kind)) for kind in ("cpu", "cuda"))
    for op in environment.OPS:
        assert cpu[op]["backend"] == "torch"
        assert "Triton kernels need a CUDA or ROCm device" in cpu[op]["why"]
        assert gpu[op]["backend"] == "triton"
    assert "up to 15 blocks on up to 4096 tokens (1024 in float64)" in gpu["activation_diffusion"]["why"]
    monkeypatch.setattr(environment, "interpreting", lambda: True)
    assert (
        "the interpreter is for tests" in environment.chosen_backends(torch.device("cpu"))["pooling"]["why"]
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("triton", "SCM_FAST_BACKEND asks for triton, but "),
        ("fastest", "SCM_FAST_BACKEND must be one of reference, torch, triton or auto, got 'fastest'"),
    ],
)
def test_a_backend_that_cannot_serve_is_shown(compiled, monkeypatch, value, message):
    monkeypatch.setenv("SCM_FAST_BACKEND", value)
    choice = environment.chosen_backends(torch.device("cpu"))["activation_diffusion"]
    assert choice["backend"] == "error"
    assert message in choice["why"]


def test_a_context_is_not_taken_for_the_variable(compiled, monkeypatch):
    monkeypatch.setenv("SCM_FAST_BACKEND", "torch")
    cpu = torch.device("cpu")
    with use_backend("reference"):
        choice = environment.chosen_backends(cpu)["pooling"]
    assert choice == {"backend": "reference", "why": "use_backend asks for it"}
    with use_backend("triton"):
        choice = environment.chosen_backends(cpu)["pooling"]
    assert choice["backend"] == "error"
    assert choice["why"].startswith("use_backend asks for triton, but ")


def test_gpus_are_listed(monkeypatch, tmp_path, info):
    properties = SimpleNamespace(
        name="Some GPU", total_memory=80 << 30, major=9, minor=0, multi_processor_count=132
    )
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '570.10\\n570.10\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    text = info()
    assert "cuda:1  Some GPU, 80.0 GiB, capability 9.0, multiprocessors 132" in text
    assert "gpu driver              570.10\n" in text


def test_caches_are_those_of_the_libraries(monkeypatch):
    triton = pytest.importorskip("triton")
    assert environment.caches()["triton"] == triton.knobs.cache.dir
    monkeypatch.setenv("TRITON_HOME", "/elsewhere")
    assert environment.caches()["triton"] == triton.knobs.cache.dir == "/elsewhere/.triton/cache"


INFO_WITHOUT_TRITON = f"""{WITHOUT_TRITON}
from scm_fast.cli import main
raise SystemExit(main(["info"]))
"""


def test_works_without_triton():
    clean = {name: value for name, value in os.environ.items() if name != "SCM_FAST_BACKEND"}
    run = subprocess.run(
        [sys.executable, "-c", INFO_WITHOUT_TRITON], capture_output=True, text=True, env=clean
    )
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    assert ["triton", "none"] in lines
    assert "triton is not installed; torch brings it with its builds for CUDA and ROCm" in run.stdout
