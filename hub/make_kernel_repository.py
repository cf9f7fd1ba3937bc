"""Write the calibration module as a repository for Hugging Face's `kernels`, from the sources of this tree.

  python hub/make_kernel_repository.py OUT

OUT gets what `kernel-builder` builds (build.toml, torch-ext/, tests/), a card, and build/ as it would make it: the
kernels are Triton's, so there is nothing to compile. `kernels.get_local_kernel(OUT)` loads it, and uploading the
folder to a kernel repository publishes it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
NAME = "scm-calibration"
MODULE = NAME.replace("-", "_")
BACKENDS = ("cpu", "cuda", "rocm")
# Modules of the package that the operation needs; the folders go whole.
MODULES = ("backends.py", "errors.py", "reference.py", "spatial_calibration.py")
FOLDERS = {"ops": ROOT / "scm_fast" / "ops", "kernels": ROOT / "kernels"}

INIT = '''"""The Spatial Calibration Module: one differentiable operation, with fused Triton kernels."""

from .backends import available_backends, use_backend
from .errors import InputError
from .spatial_calibration import CalibrationOutput, SpatialCalibration

__all__ = ["CalibrationOutput", "InputError", "SpatialCalibration", "available_backends", "use_backend"]
'''
# Two versions may be loaded in one process, so the ops of each have a namespace of their own.
OWN_NAMESPACE = 'NAMESPACE = "scm_fast"'
BUILDERS_NAMESPACE = 'NAMESPACE = add_op_namespace_prefix("").removesuffix("::")'
IMPORT_ERRORS = "from .errors import InputError\n"
BUILD = f"""[general]
edition = 5
name = "{NAME}"
version = 1
license = "apache-2.0"
backends = [{", ".join(f'"{backend}"' for backend in BACKENDS)}]

[torch-noarch]
"""
OPS = '''"""The namespace of this build's ops."""

_OPS_NAME = "{id}"


def add_op_namespace_prefix(op_name: str) -> str:
    """Return the op's name with the namespace."""
    return f"{{_OPS_NAME}}::{{op_name}}"
'''
# Older versions of `kernels` look for a folder of the kernel's name.
COMPATIBLE = '''"""The kernel, for versions of `kernels` that look for it here."""

import importlib.util
import sys
from pathlib import Path

_path = Path(__file__).parents[1] / "__init__.py"
_spec = importlib.util.spec_from_file_location("{id}", _path)
if "{id}" not in sys.modules:
    sys.modules["{id}"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["{id}"])
globals().update({{k: v for k, v in vars(sys.modules["{id}"]).items() if not k.startswith("__")}})
'''


def make_repository(out: Path) -> Path:
    """Write the repository into a folder that is empty or not there yet."""
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out}: this folder is not empty")
    sources = dict(_sources())
    _write(out / "build.toml", BUILD)
    _write(out / "README.md", (HERE / "card.md").read_text())
    _write(out / "tests" / f"test_{MODULE}.py", (HERE / "kernel_tests.py").read_text())
    shutil.copy(ROOT / "LICENSE", out)
    for name, text in sources.items():
        _write(out / "torch-ext" / MODULE / name, text)
    digest = hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:7]
    for backend in BACKENDS:
        _write_build(out / "build" / f"torch-{backend}", backend, sources, digest)
    return out


def _sources() -> Iterator[tuple[str, str]]:
    """Give the files of the Python package, each by its path in it."""
    yield "__init__.py", INIT
    for name in MODULES:
        text = (ROOT / "scm_fast" / name).read_text()
        yield name, _with_builders_namespace(text) if name == "backends.py" else text
    for folder, source in FOLDERS.items():
        for file in sorted(source.glob("*.py")):
            yield f"{folder}/{file.name}", file.read_text()


def _with_builders_namespace(text: str) -> str:
    if text.count(OWN_NAMESPACE) != 1 or text.count(IMPORT_ERRORS) != 1:
        raise SystemExit(f"backends.py must have one {OWN_NAMESPACE!r} and one {IMPORT_ERRORS!r}")
    text = re.sub(rf"^{re.escape(OWN_NAMESPACE)}", BUILDERS_NAMESPACE, text, flags=re.M)
    return text.replace(IMPORT_ERRORS, f"from ._ops import add_op_namespace_prefix\n{IMPORT_ERRORS}")


def _write_build(folder: Path, backend: str, sources: dict[str, str], digest: str) -> None:
    """Write what kernel-builder makes of the sources for a backend."""
    about = {
        "name": NAME,
        "id": f"_{MODULE}_{backend}_{digest}",
        "version": 1,
        "license": "apache-2.0",
        "python-depends": [],
        "backend": {"type": backend},
    }
    for name, text in sources.items():
        _write(folder / name, text)
    _write(folder / "_ops.py", OPS.format(id=about["id"]))
    _write(folder / MODULE / "__init__.py", COMPATIBLE.format(id=about["id"]))
    _write(folder / "metadata.json", json.dumps(about, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="an empty or new folder")
    print(make_repository(parser.parse_args().out))


if __name__ == "__main__":
    main()
