"""Builds the null GPU with g++ and says how a process is started on it."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("null_gpu.cpp")
# PyTorch asks this library by its name, so that a function of another one would not be found first.
COMPILER_SOURCE, COMPILER = Path(__file__).with_name("nvrtc.cpp"), "libnvrtc.so.13"
# The libraries of PyTorch that call CUDA, and what the null GPU answers of their calls.
CALLERS = (
    "libc10_cuda.so",
    "libcaffe2_nvrtc.so",
    "libtorch_cuda.so",
    "libtorch_cuda_linalg.so",
    "libtorch_python.so",
)
ANSWERED = re.compile(r"(?:cu|cuda|cublas|nccl)[A-Z]\w+")
COUNTED = {
    "library": re.compile(
        r"cublas(?!.*(?:Desc|Layout|Pref|Algo)).*(?:gemm|gemv|dot|Matmul|trsm|getr|geqr)", re.I
    ),
    "nccl": re.compile(r"nccl(?:All\w+|Broadcast|Bcast|Reduce\w*|Send|Recv)"),
}


def why_not() -> str:
    """The reason why there is no null GPU on this machine; empty where there is one."""
    for program in ("g++", "nm"):
        if shutil.which(program) is None:
            return f"no {program} to build the null GPU"
    if not (torch.version.cuda or "").startswith("13."):
        return f"the null GPU stands in for CUDA 13, torch is built for {torch.version.cuda or 'the CPU'}"
    return ""


def _called(library: Path) -> set[str]:
    lines = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
    )
    names = (line.split()[-1].split("@")[0] for line in lines.stdout.splitlines())
    return {name for name in names if ANSWERED.fullmatch(name)}


def _stubs() -> str:
    """C++ of every function that PyTorch or Triton calls and the source does not define: it succeeds."""
    defined = set(re.findall(r"^API [\w ]+?\*?\s?(\w+)\(", SOURCE.read_text(), re.M))
    library = Path(torch.__file__).parent / "lib"
    called = set().union(*(_called(library / name) for name in CALLERS if (library / name).exists()))
    if triton := importlib.util.find_spec("triton"):
        driver = Path(triton.submodule_search_locations[0]) / "backends" / "nvidia" / "driver.c"
        called |= set(re.findall(r"\b(cu[A-Z]\w+)\(", driver.read_text()))
    lines = ['extern "C" void null_count(const char*, const char*);']
    for name in sorted(called - defined):
        kind = next((kind for kind, pattern in COUNTED.items() if pattern.match(name)), None)
        body = f'null_count("{kind}", "{name}"); ' if kind else ""
        lines.append(f'extern "C" __attribute__((visibility("default"))) int {name}() {{ {body}return 0; }}')
    return "\n".join(lines)


@functools.cache
def folder() -> Path:
    """Return the library's folder; it is built when first asked for, by several processes at once if need be."""
    sources = (SOURCE, COMPILER_SOURCE, Path(__file__))
    content = b"".join(path.read_bytes() for path in sources) + torch.__version__.encode()
    name = f"scm-fast-null-gpu-{os.getuid()}-{hashlib.sha256(content).hexdigest()[:12]}"
    kept = Path(tempfile.gettempdir()) / name
    if kept.is_dir():
        return kept
    with tempfile.TemporaryDirectory(prefix=name) as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        (made / "stubs.cpp").write_text(_stubs())
        (made / "versions").write_text(f"{COMPILER} {{ global: nvrtc*; }};")
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w"]
        subprocess.run(
            [*command, SOURCE, made / "stubs.cpp", "-o", made / "libcuda.so.1", "-ldl"], check=True
        )
        named = [f"-Wl,-soname,{COMPILER}", f"-Wl,--version-script={made / 'versions'}"]
        subprocess.run([*command, *named, COMPILER_SOURCE, "-o", made / COMPILER], check=True)
        try:
            made.rename(kept)
        except OSError:
            assert kept.is_dir(), "another process has built it"
    return kept


NOT_PASSED_ON = ("CUDA_VISIBLE_DEVICES", "PYTEST_XDIST")


def environment(gpus: int = 1) -> dict[str, str]:
    """Variables of a process that is to see so many null GPUs."""
    built = folder()
    return {
        # A process of its own: no worker of pytest-xdist, in which benchmarks are refused.
        **{name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)},
        "NULL_GPUS": str(gpus),
        "LD_PRELOAD": f"{built / 'libcuda.so.1'}:{built / COMPILER}",
        "LD_LIBRARY_PATH": str(built),
        "TRITON_LIBCUDA_PATH": str(built),
        "TRITON_CACHE_DIR": str(built / "triton"),
        "TRITON_INTERPRET": "0",
    }
