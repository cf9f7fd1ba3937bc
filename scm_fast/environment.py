"""The environment of scm_fast: for `scm-fast info`, which shows all that a bug report needs, and benchmarks."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from . import __version__
from .backends import available_backends, interpreting, requested_backend, why_not
from .devices import resolve_device
from .errors import InputError
from .ops.activation_diffusion import MAX_FUSED_BLOCKS, MAX_FUSED_TOKENS, MAX_STENCIL_ITERATIONS
from .ops.cls_row import MAX_TOKENS

# Each op that has a Triton kernel, and what the kernel asks of a call beyond a device.
OPS = {
    "edge_similarity": "",
    "pooling": "",
    "laplacian": "",
    "newton_schulz": "",
    "activation_diffusion": (
        f"one launch for up to {MAX_FUSED_BLOCKS} blocks on up to {MAX_FUSED_TOKENS[torch.float32]} tokens "
        f"({MAX_FUSED_TOKENS[torch.float64]} in float64); a larger grid runs in torch operations, "
        f"and p > {MAX_STENCIL_ITERATIONS} on dense matrices"
    ),
    "cls_row": f"up to {MAX_TOKENS} tokens without a mask; other rows are torch operations",
}
PACKAGES = ("torch", "triton", "torchvision", "timm", "numpy", "opencv-python-headless", "huggingface_hub")
# Distributions that bring the module `triton`.
_TRITON_NAMES = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-windows")
_PREFIXES = (
    "SCM_FAST_",
    "TRITON_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "PYTORCH_",
    "CUDA_",
    "HIP_",
    "ROCR_",
    "NCCL_",
)
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG")
_CACHE_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "XDG_CACHE_HOME")


def describe() -> dict[str, Any]:
    """Versions, devices, backends, ops, caches and environment variables, as plain values."""
    variables = environment()  # first: torch._inductor sets some when it is imported
    return {
        "versions": versions(),
        "devices": devices(),
        "backends": available_backends(),
        "auto": chosen_backends(resolve_device(None)),
        "caches": caches(),
        "environment": variables,
    }


def _version(package: str) -> str | None:
    if package == "triton" and importlib.util.find_spec("triton") is None:
        return None
    for name in _TRITON_NAMES if package == "triton" else (package,):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def versions() -> dict[str, str | None]:
    """None for what is not there."""
    return {
        "scm_fast": __version__,
        "installed in": str(Path(__file__).parent),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: _version(package) for package in PACKAGES},
        "cuda of torch": torch.version.cuda,
        "rocm of torch": torch.version.hip,
        "gpu driver": _driver(),
    }


def _driver() -> str | None:
    """Return the version of NVIDIA's or AMD's kernel module; None without one."""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            done = subprocess.run(query, capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.split()[0]
    amd = Path("/sys/module/amdgpu/version")
    return amd.read_text().strip() if amd.exists() else None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _memory() -> int | None:
    """Bytes of the machine's memory, where the system says."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def devices() -> list[dict[str, Any]]:
    """The CPU first; memory in bytes."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found: list[dict[str, Any]] = [
        {
            "device": "cpu",
            "name": _cpu_name(),
            "memory": _memory(),
            "cores": usable,
            "threads": torch.get_num_threads(),
        }
    ]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "device": f"cuda:{index}",
                "name": properties.name,
                "memory": properties.total_memory,
                "capability": getattr(properties, "gcnArchName", None)
                if torch.version.hip
                else f"{properties.major}.{properties.minor}",
                "multiprocessors": properties.multi_processor_count,
            }
        )
    return found


def device_name(device: torch.device) -> str:
    """The GPU's name, or the processor's and the number of threads that torch uses now."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_cpu_name()}, {threads} thread{'s' if threads > 1 else ''}"


def commit() -> str:
    """The commit that is checked out, with `-dirty` if tracked files differ from it; empty without git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def chosen_backends(device: torch.device) -> dict[str, dict[str, str]]:
    """Return for every op the backend that `auto` takes on `device`, and why."""
    return {op: _choice(device, limits) for op, limits in OPS.items()}


def _choice(device: torch.device, limits: str) -> dict[str, str]:
    try:
        name, source = requested_backend()
    except InputError as error:
        return {"backend": "error", "why": str(error)}
    if name != "auto" and (reason := why_not(name, device)):
        return {"backend": "error", "why": f"{source} asks for {name}, but {reason}"}
    if name == "auto":
        if interpreting():
            name, why = "torch", "TRITON_INTERPRET=1: the interpreter is for tests, auto never takes it"
        elif refusal := why_not("triton", device):
            name, why = "torch", refusal
        else:
            name, why = "triton", f"the fastest, and it can serve {device}"
    else:
        why = f"{source} asks for it"
    return {"backend": name, "why": f"{why}; {limits}" if limits and name == "triton" else why}


def caches() -> dict[str, str]:
    """Return where compiled kernels and downloaded weights are kept."""
    found = {
        "triton": os.environ.get("TRITON_CACHE_DIR")
        or os.path.join(os.environ.get("TRITON_HOME", os.path.expanduser("~/")), ".triton", "cache"),
        "torch hub": torch.hub.get_dir(),
    }
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    found["inductor"] = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir()
    if importlib.util.find_spec("huggingface_hub") is not None:
        from huggingface_hub.constants import HF_HUB_CACHE

        found["hugging face hub"] = HF_HUB_CACHE
    return found


def environment() -> dict[str, str]:
    """Variables that change what runs. No others: some hold secrets."""
    names = (*_VARIABLES, *_CACHE_VARIABLES)
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name in names or name.startswith(_PREFIXES)
    }
