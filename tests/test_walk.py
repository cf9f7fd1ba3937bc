"""Measure how far a reader walks from a call to the kernels, and what stays out of the package."""

import ast
import sys
from pathlib import Path

import pytest
import torch

from scm_fast import SpatialCalibration

ROOT = Path(__file__).parents[1]
MOST_FILES = 9


def files_entered(call) -> set[str]:
    """Files of the project whose functions run during `call`, kernels in the interpreter included."""
    found = set()

    def note(frame, event, _):
        if event == "call":
            found.add(frame.f_code.co_filename)

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(previous)
    paths = (Path(name).resolve() for name in found)
    ours = {path.relative_to(ROOT).as_posix() for path in paths if path.is_relative_to(ROOT)}
    return {name for name in ours if name.startswith(("scm_fast/", "kernels/"))}


def test_a_call_reaches_its_kernels_through_few_files():
    pytest.importorskip("triton")
    scm = SpatialCalibration(backend="triton")
    S, F = torch.randn(1, 3, 2, 3), torch.rand(1, 2, 3)
    scm(S, F)  # imports are no part of the walk
    entered = files_entered(lambda: scm(S, F))
    launchers = {f"kernels/{op}.py" for op in ("edge_similarity", "activation_diffusion", "pooling")}
    assert launchers | {"scm_fast/spatial_calibration.py"} <= entered
    assert len(entered) <= MOST_FILES, sorted(entered)


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "kernels").glob("*.py")), ids=lambda path: path.stem)
def test_kernels_import_nothing_but_each_other(path):
    allowed = {"torch", "triton", *sys.stdlib_module_names}
    for module in imported_modules(path):
        of_this_folder = module.startswith(".") and not module.startswith("..")
        assert of_this_folder or module.split(".")[0] in allowed, module
