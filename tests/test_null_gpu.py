"""Every line that a GPU takes, on a GPU that computes nothing: see null_gpu/. The CPU computes the values."""

import csv
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from data_folders import write_cub
from null_gpu import build
from null_gpu.table import STEP, launches_table
from training_runs import CONFIG

from scm_fast import create_model, save_model
from scm_fast.benchmarks.table import EAGER_TIME, PEAK_MEMORY, TIME, read_table
from scm_fast.cli import main
from scm_fast.models.maps import map_names

pytestmark = pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())


# Budgets: what a change may not exceed. Waits of the host for the device in a step of the optimiser.
MOST_WAITS_OF_A_STEP = 1
MOST_WAITS_OF_AN_EPOCH = 2  # beyond those of its steps: mean and deviation of the pixels are brought once
MOST_WAITS_OF_A_FORWARD_PASS = 0
MOST_LAUNCHES_A_LAYER = 2  # of SCM beyond TS-CAM, forward and backward together
MOST_LAUNCHES_BESIDE = 8  # and apart from the layers: the module, and the mean over the layers
MOST_HOST_MICROSECONDS = 4000  # of the module, forward and backward; 1,500 on a busy machine
MOST_SECONDS_OF_NOTHING = 1e-6  # that the benchmark may measure
MOST_FORKS_OF_A_VALIDATION = 1  # which decodes, where there is a worker


def start(program: str, *arguments: str, gpus: int = 1, **variables: str) -> subprocess.Popen:
    environment = {**build.environment(gpus), "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-m", f"null_gpu.{program}", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, cwd=Path(__file__).parent, **pipes)


def result_of(process: subprocess.Popen) -> Any:
    """Return what a program of null_gpu/ prints at last, as JSON."""
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def run_on_gpu(program: str, *arguments: str) -> Any:
    return result_of(start(program, *arguments))


def test_launches_of_a_training_step():
    """Counted in bfloat16, with fused attention; docs/tables/kernels.md has the table."""
    found = run_on_gpu("steps", *STEP)
    page = (Path(__file__).parents[1] / "docs" / "tables" / "kernels.md").read_text()
    assert "\n".join(["<!-- launches -->", *launches_table(found), "<!-- /launches -->"]) in page

    def launches(method: str) -> int:
        return sum(part["launches"] for part in found[method]["parts"].values())

    layers = 12
    beyond = launches("scm") - launches("tscam")
    assert 0 < beyond <= MOST_LAUNCHES_A_LAYER * layers + MOST_LAUNCHES_BESIDE
    kernels = found["scm"]["parts"]["forward"]["kernels"]
    assert kernels["cls_row_forward_kernel"] == layers
    assert kernels["edge_similarity_forward_kernel"] == 1
    for method in ("tscam", "scm", "lctr", "cls", "sat"):
        waits = {part: sum(work["waits"].values()) for part, work in found[method]["parts"].items()}
        assert waits["forward"] <= MOST_WAITS_OF_A_FORWARD_PASS, found[method]
        assert waits["backward"] == waits["update"] == 0, found[method]


def test_module_in_a_graph():
    """Nothing of it waits, so that a graph takes it as it is; and it takes little of the host."""
    found = run_on_gpu("module")
    assert found["eager"]["triton"] == found["captured"]["triton"] == 6
    assert "refused in a capture" not in found["captured"]
    assert found["replayed"] == {"graph": 1}
    assert found["host_microseconds"] <= MOST_HOST_MICROSECONDS


def test_values_of_training_steps_are_those_of_the_cpu():
    """Each operation is computed on the CPU over the same bytes: what is lost on the way would show."""
    found = run_on_gpu("check_values", "cls", "lctr", "sat", "scm", "tscam")
    for method, (on_cpu, on_gpu) in found.items():
        assert on_gpu == pytest.approx(on_cpu, rel=1e-6), method


# Of every method one epoch, with each option that touches a device in one of them.
TRAININGS = {
    "cls": {"method": "cls", "amp": "none", "device": "cuda:0", "workers": 1},
    "tscam": {"method": "tscam", "amp": "bf16", "channels_last": True, "average": 0.9},
    "lctr": {"method": "lctr", "amp": "bf16", "frozen_blocks": 1, "layer_decay": 0.7, "head_lr": 1e-3},
    "sat": {"method": "sat", "amp": "bf16", "micro_batch": 3},
    "scm": {"method": "scm", "amp": "bf16", "micro_batch": 3, "clip_grad": 1.0},
    "scm, fp16": {"method": "scm", "amp": "fp16", "grad_checkpointing": True, "small_size": 24},
    "scm, official": {"method": "scm", "preset": "official", "amp": "bf16"},
}
FIXED = CONFIG | {
    "backbone_options": CONFIG["backbone_options"] | {"depth": 3},
    "epochs": 1,
    "device": "cuda",
    "checkpoint_steps": 100,
}


@pytest.fixture(scope="session")
def cub(tmp_path_factory) -> str:
    return str(write_cub(tmp_path_factory.mktemp("data") / "CUB"))


def written(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


@pytest.fixture(scope="session")
def trained(tmp_path_factory, cub) -> dict:
    """Return what null_gpu.train says of every training, by name."""
    folder = tmp_path_factory.mktemp("null_gpu")
    cases = {
        name: FIXED | case | {"data": cub, "out": str(folder / name)} for name, case in TRAININGS.items()
    }
    return run_on_gpu("train", written(folder / "cases.json", cases))


def losses(run: dict) -> list[float]:
    return [float(row["loss"]) for row in csv.DictReader(run["log"])]


@pytest.mark.parametrize("name", TRAININGS)
def test_an_epoch_of_every_method(trained, name):
    run = trained[name]
    assert run["devices"] == ["cuda:0"]
    assert run["steps"] == len(losses(run)) == 4
    assert all(0 < loss < 10 for loss in losses(run)), losses(run)


@pytest.mark.parametrize("name", TRAININGS)
def test_waits_of_an_epoch(trained, name):
    run = trained[name]
    waits, most = run["waits"]["train_epoch"], MOST_WAITS_OF_A_STEP * run["steps"]
    assert 0 < sum(waits.values()) <= most + MOST_WAITS_OF_AN_EPOCH, waits


@pytest.mark.parametrize("name", TRAININGS)
def test_forks_of_a_validation(trained, name):
    assert trained[name]["forks"]["validate_epoch"] <= MOST_FORKS_OF_A_VALIDATION


def test_two_ranks(trained, tmp_path, cub):
    """Each with a GPU of its own; the losses are those of one process."""
    case = FIXED | TRAININGS["sat"] | {"data": cub, "out": str(tmp_path / "out"), "micro_batch": 64}
    cases = written(tmp_path / "cases.json", {"sat": case})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    both = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **address}
    ranks = [start("train", cases, gpus=2, RANK=str(rank), LOCAL_RANK=str(rank), **both) for rank in range(2)]
    for rank, process in enumerate(ranks):
        run = result_of(process)["sat"]
        assert run["devices"] == [f"cuda:{rank}"]
        assert run["collectives"]["ncclAllReduce"] >= run["steps"] == 4
        assert losses(run) == pytest.approx(losses(trained["sat"]), rel=1e-2)  # in bfloat16


def leaves(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Return the values of a JSON file by their places."""
    if not isinstance(content, dict | list):
        yield path, content
        return
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield from leaves(value, f"{path}/{key}")


def about(value: Any) -> Any:
    return pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value


def test_evaluation_with_every_map_and_predict(tmp_path, cub):
    """The figures are those of the same commands on the CPU."""
    torch.manual_seed(0)
    options = {"depth": 3, "embed_dim": 48, "num_heads": 3}
    model = create_model("deit_tiny_patch16_224", 3, "scm", image_size=32, backbone_options=options)
    checkpoint = str(save_model(model, tmp_path / "model"))
    ways = {name: ["--map", name] for name in map_names()}
    ways |= {"own": [], "refined": ["--refine"], "mirrored": ["--mirror"], "trace": ["--strategy", "F0,4*S4"]}
    common = ["--checkpoint", checkpoint, "--device"]
    evaluate = ["--data", cub, "--protocol", "maxbox", "--workers", "0", "--amp", "none"]

    def commands(device: str) -> list[list[str]]:
        out = tmp_path / device
        found = [
            ["evaluate", *common, device, *evaluate, *way, "--out", str(out / name)]
            for name, way in ways.items()
        ]
        images = str(Path(cub) / "images" / "001.Bird_0")
        return [*found, ["predict", images, *common, device, "--amp", "none", "--out", str(out / "predict")]]

    assert run_on_gpu("commands", written(tmp_path / "commands.json", commands("cuda"))) == [0] * (
        len(ways) + 1
    )
    assert [main(command) for command in commands("cpu")] == [0] * (len(ways) + 1)

    def values(device: str, name: str) -> dict:
        file = "predictions.json" if name == "predict" else "metrics.json"
        content = json.loads((tmp_path / device / name / file).read_text())
        return dict(leaves(content["metrics"] if name in ways else content))

    for name in [*ways, "predict"]:
        expected = {place: about(value) for place, value in values("cpu", name).items()}
        assert values("cuda", name) == expected, name


def test_benchmark_of_kernels_that_take_no_time(tmp_path):
    """The benchmark adds nothing of its own to the time of kernels; the eager time is the host's."""
    table = tmp_path / "table.csv"
    assert run_on_gpu("bench", str(table), "spatial_calibration") == 0
    found = {(row.backend, row.metric): row for row in read_table(table) if not row.not_run}
    assert found["triton", TIME].p50 <= MOST_SECONDS_OF_NOTHING
    for backend in ("reference", "torch", "triton"):
        assert found[backend, EAGER_TIME].p50 > 100 * MOST_SECONDS_OF_NOTHING
        assert found[backend, PEAK_MEMORY].p50 > 0
