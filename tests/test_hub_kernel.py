"""The repository for Hugging Face's `kernels`: generated, valid, loaded from its folder, and its own tests.

In processes of their own: the folder `kernels` of this tree would be taken for that package.
"""

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "hub" / "make_kernel_repository.py"


def run(*command, cwd, **environment):
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        timeout=500,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "scm-calibration"
    status, said = run(SCRIPT, folder, cwd=folder.parent)
    assert status == 0, said
    return folder


@pytest.fixture
def needs_kernels(tmp_path):
    """Skip in an environment without the package, as the oldest: it wants a newer huggingface_hub."""
    status, _ = run("-c", "from kernels import get_local_kernel", cwd=tmp_path)
    if status:
        pytest.skip("the package `kernels` is not installed")


def test_layout(repository):
    assert {path.name for path in repository.iterdir()} == {
        *("LICENSE", "README.md", "build", "build.toml", "tests", "torch-ext")
    }
    general = tomllib.loads((repository / "build.toml").read_text())["general"]
    assert (general["name"], general["license"]) == ("scm-calibration", "apache-2.0")
    sources = repository / "torch-ext" / "scm_calibration"
    expected = {f"kernels/{file.name}" for file in (ROOT / "kernels").glob("*.py")}
    expected |= {f"ops/{file.name}" for file in (ROOT / "scm_fast" / "ops").glob("*.py")}
    expected |= {"__init__.py", "backends.py", "errors.py", "reference.py", "spatial_calibration.py"}
    assert {file.relative_to(sources).as_posix() for file in sources.rglob("*.py")} == expected
    for backend in general["backends"]:
        build = repository / "build" / f"torch-{backend}"
        about = json.loads((build / "metadata.json").read_text())
        assert about["backend"] == {"type": backend}
        for name in expected:
            assert (build / name).read_text() == (sources / name).read_text()
    card = (repository / "README.md").read_text().split("---\n")
    assert yaml.safe_load(card[1]) == {"library_name": "kernels", "license": "apache-2.0", "tags": ["kernel"]}


def test_it_needs_torch_and_triton_alone(repository):
    """Kernels of the hub may not import another package, nor their own by its name."""
    allowed = {"torch", "triton", *sys.stdlib_module_names}
    for file in (repository / "torch-ext").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, file
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module.split(".")[0] in allowed, file


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").touch()
    status, said = run(SCRIPT, tmp_path, cwd=tmp_path)
    assert status == 1
    assert "this folder is not empty" in said
    assert os.listdir(tmp_path) == ["mine.txt"]


LOAD = """
import sys
from pathlib import Path
import torch
from kernels import get_local_kernel
from kernels._rust import Build, Metadata
folder = Path(sys.argv[1])
assert [str(backend) for backend in Build.open(folder).general.backends] == ["cpu", "cuda", "rocm"]
import scm_fast  # its ops and those of the hub are registered side by side
theirs = get_local_kernel(folder, backend="cpu")
torch.manual_seed(0)
S, F = torch.randn(2, 5, 7, 7), torch.rand(2, 7, 7)
torch.testing.assert_close(theirs.SpatialCalibration()(S, F).logits, scm_fast.SpatialCalibration()(S, F).logits)
namespaces = {name.split("::")[0] for name in torch._C._dispatch_get_all_op_names() if "calibration" in name}
print(sorted(namespaces))
assert theirs.SpatialCalibration is not scm_fast.SpatialCalibration
assert not any(name.startswith("scm_fast.kernels") for name in sys.modules)
"""


def test_it_loads_beside_this_package(repository, tmp_path, needs_kernels):
    status, said = run("-c", LOAD, repository, cwd=tmp_path)
    assert status == 0, said
    assert "['_scm_calibration_cpu_" in said
    assert "scm_fast" in said


def test_its_own_tests_pass(repository, tmp_path, needs_kernels):
    """Run them in Triton's interpreter, as there is no GPU."""
    status, said = run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", repository / "tests"),
        cwd=tmp_path,
        TRITON_INTERPRET="1",
    )
    assert status == 0, said
    assert "skipped" not in said
