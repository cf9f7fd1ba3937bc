"""The package as others get it: pinned tools agree, imports are declared, the wheel is whole and works."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import scm_fast
from scm_fast.training.recipes import recipe_names

ROOT = Path(__file__).parents[1]
EXTRAS = ("plots", "onnx", "tensorboard", "heic")


def run(*command, **options) -> str:
    """Return what a command prints; it must end well."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pre_commit_has_the_pinned_ruff():
    pinned = re.search(r"^ruff==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)[1]
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repo["repo"].split("/")[-1]: repo["rev"] for repo in config["repos"]} == {
        "ruff-pre-commit": f"v{pinned}"
    }


def pins(file: str) -> dict[str, str]:
    """Distribution -> its exact version in a file of constraints, which has nothing else."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    found = [re.fullmatch(r"([\w.-]+)==([\w.+]+)", line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return {canonical(match[1]): match[2] for match in found}


def bounds(text: str) -> list[tuple[str, str]]:
    return re.findall(r'"([\w-]+)>=([\d.]+)[";]', text)


def test_lower_bounds_are_the_versions_that_are_tested():
    """Those of users are in the oldest environment of CI, those of developers in its usual one."""
    project = (ROOT / "pyproject.toml").read_text().split("[project]")[1].split("[project.scripts]")[0]
    users = project.split("\ndocs = [")[0]  # what follows is for developers
    oldest, newest = pins("constraints-oldest.txt"), pins("constraints.txt")
    assert len(bounds(users)) > 15
    for name, bound in bounds(project):
        version = (oldest if name in dict(bounds(users)) else newest)[canonical(name)]
        assert version == bound or version.startswith(f"{bound}."), name
    assert {canonical(name) for name, _ in bounds(users)} <= newest.keys()
    for name, floor in {
        "torch": "2.6",
        "numpy": "1.26",
        "opencv-python-headless": "4.8",
        "pydantic": "2.5",
    }.items():
        assert (name, floor) in bounds(users)


def test_every_package_folder_is_packaged():
    listed = re.search(r"^packages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)[1]
    here = {
        ".".join(file.parent.relative_to(ROOT).parts) for file in (ROOT / "scm_fast").rglob("__init__.py")
    }
    assert set(re.findall(r'"(.+?)"', listed)) == here | {"scm_fast.kernels", "scm_fast.configs"}


def test_versions_agree():
    declared = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert scm_fast.__version__ == declared
    assert f"\n## {declared}\n" in (ROOT / "CHANGELOG.md").read_text()


def requirements(table: str) -> set[str]:
    """Distributions that a part of pyproject.toml names: `dependencies`, or an extra."""
    listed = re.search(rf"^{table} = \[(.*?)\]$", (ROOT / "pyproject.toml").read_text(), re.M | re.S)[1]
    return {canonical(name) for name in re.findall(r'"([\w-]+)', listed)}


def canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def imported(file: Path) -> set[str]:
    """Top-level names of the modules that a file imports, wherever in it, but for its own package's."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names - {"scm_fast"}


def test_what_is_imported_is_declared():
    declared = {"triton"}.union(*(requirements(table) for table in ("dependencies", *EXTRAS)))
    providers = importlib.metadata.packages_distributions()
    missing = {}
    for file in (*(ROOT / "scm_fast").rglob("*.py"), *(ROOT / "kernels").glob("*.py")):
        for module in imported(file):
            if not declared & {canonical(name) for name in providers.get(module, [module])}:
                missing[module] = file.name
    assert missing == {}


def test_triton_is_left_to_torch():
    """Its builds for CUDA and ROCm bring their own, which pip would overwrite with PyPI's."""
    tables = ("dependencies", *EXTRAS, "dev")
    assert not any("triton" in name for table in tables for name in requirements(table))


WITHOUT_EXTRAS = """
import importlib, sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # an import of them fails
for command in importlib.import_module("scm_fast.cli").COMMANDS:
    importlib.import_module(f"scm_fast.cli.{command.replace('-', '_')}")
import scm_fast.evaluation, scm_fast.models, scm_fast.training
"""


def test_extras_are_not_needed_to_start():
    run(
        sys.executable, "-c", WITHOUT_EXTRAS, "matplotlib", "onnx", "onnxruntime", "onnxscript", "tensorboard"
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel that was built from a sdist, as a release is; both are in its folder.

    From a copy: setuptools leaves its traces beside the sources.
    """
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    for name in ("scm_fast", "kernels", "configs", "tests", "bench"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--no-isolation", "-o", out, source)
    return next(out.glob("*.whl"))


@pytest.mark.slow
def test_sdist_holds_what_a_wheel_is_built_of(wheel):
    (archive,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(archive) as contents:
        names = {name.partition("/")[2] for name in contents.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "CITATION.cff"} <= names
    assert {"kernels/pooling.py", "configs/builtin.yaml", "scm_fast/py.typed"} <= names
    assert not any(name.startswith("bench") for name in names)


@pytest.mark.slow
def test_wheel_holds_the_package_alone(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "scm_fast",
        f"scm_fast-{scm_fast.__version__}.dist-info",
    }
    expected = {
        *(file.relative_to(ROOT).as_posix() for file in (ROOT / "scm_fast").rglob("*.py")),
        *(f"scm_fast/kernels/{file.name}" for file in (ROOT / "kernels").glob("*.py")),
        *(f"scm_fast/configs/{file.name}" for file in (ROOT / "configs").glob("*.yaml")),
        "scm_fast/configs/__init__.py",
        "scm_fast/py.typed",
        "scm_fast/evaluation/report/template.html",
    }
    packaged = {name for name in names if name.startswith("scm_fast/")}
    assert packaged == expected


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """bin/ of an empty environment with the wheel; the dependencies are those of this one."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    ours = [path for path in sys.path if path.endswith("site-packages")]
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # Their own .pth files are not read from there, so an editable install of this package is not seen.
    (Path(site) / "dependencies.pth").write_text("\n".join(ours) + "\n")
    return environment / "bin"


SMOKE = """
import torch, scm_fast
from pathlib import Path
assert Path(scm_fast.__file__).is_relative_to(Path(__import__("sys").prefix)), scm_fast.__file__
scm = scm_fast.SpatialCalibration()
S = torch.randn(2, 5, 7, 7, requires_grad=True)
scm(S, torch.rand(2, 7, 7)).logits.sum().backward()
assert S.grad.isfinite().all() and S.grad.abs().sum() > 0
assert "not installed" not in scm_fast.available_backends()["triton"]
from PIL import Image
Image.new("RGB", (90, 60), "red").save("photo.png")
small = {"depth": 1, "embed_dim": 48, "num_heads": 3}
scm_fast.save_model(scm_fast.create_model("deit_tiny_patch16_224", 3, backbone_options=small), "model")
"""


@pytest.mark.slow
def test_wheel_works_in_an_empty_environment(installed, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    here = {"cwd": tmp_path, "env": environment}
    run(installed / "python", "-c", SMOKE, **here)
    assert "predict" in run(installed / "scm-fast", "--help", **here)
    run(installed / "scm-fast", "predict", "photo.png", "--checkpoint", "model", "--out", "found", **here)
    assert (tmp_path / "found" / "predictions.json").is_file()
    shown = run(installed / "scm-fast", "train", "--help", **here)
    assert all(name in re.sub(r"\s+", "", shown) for name in recipe_names())


def test_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"title", "authors", "message"} <= citation.keys()
    assert citation["version"] == scm_fast.__version__
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    (paper,) = citation["references"]
    assert f"{{{paper['title']}}}" in (ROOT / "README.md").read_text()


def test_security_policy_says_what_is_so():
    policy = (ROOT / "SECURITY.md").read_text()
    assert "weights_only=True" in policy
    assert "weights_only=True" in (ROOT / "scm_fast/models/weights.py").read_text()
    loads = [file for file in (ROOT / "scm_fast").rglob("*.py") if "torch.load(" in file.read_text()]
    for file in loads:
        assert file.read_text().count("torch.load(") == file.read_text().count("weights_only=True"), file


def publishing() -> dict:
    return yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())["jobs"]


def test_a_release_is_run_before_it_is_published():
    jobs = publishing()
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    commands = "\n".join(step.get("run", "") for step in jobs["build"]["steps"])
    order = ["test ", "python -m build", "pip install --quiet dist/*.whl", "scm-fast demo --quick"]
    places = [commands.index(command) for command in order]
    assert places == sorted(places)


@pytest.mark.parametrize(("tag", "status"), [(f"v{scm_fast.__version__}", 0), ("v99.0.0", 1)])
def test_a_release_of_another_version_is_refused(tag, status):
    (command,) = (
        step["run"] for step in publishing()["build"]["steps"] if step.get("name") == "The tag is the version"
    )
    environment = {**os.environ, "GITHUB_REF_NAME": tag}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    assert subprocess.run(["bash", "-e", "-c", command], cwd=ROOT, env=environment).returncode == status


def test_the_image_copies_what_the_demo_needs():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    assert all((ROOT / name).exists() for name in copied)
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "constraints.txt"} <= copied
    assert {"scm_fast", "kernels", "configs"} <= copied
    not_ignored = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    assert not_ignored == copied
    assert lines[-1] == 'CMD ["make", "demo"]'


@pytest.mark.slow
def test_the_image_runs_the_demo():
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("docker does not run here")
    run("docker", "build", "--quiet", "--tag", "scm-fast-test", ROOT)
    shown = run("docker", "run", "--rm", "scm-fast-test", "make", "demo", "QUICK=1")
    assert "SCM" in shown
