"""Runs of train.py in real processes: several of them, killed ones, stopped ones, restarted ones."""

import csv
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import yaml
from data_folders import write_cub
from training_runs import CONFIG, MODELS, assert_same_run, rows, weights

from scm_fast import load_model
from scm_fast.evaluation import Predictor, evaluate
from scm_fast.training import make_config
from scm_fast.training.validation import validation_settings

ROOT = Path(__file__).parent.parent
FORKS = multiprocessing.get_context("forkserver")  # torch and timm are imported once, not in every process
FORKS.set_forkserver_preload(["scm_fast.training", "scm_fast.training.validation", "timm"])


class Run(NamedTuple):
    folder: Path
    status: int  # of the first process; negative if a signal ended it
    said: str


def _train(arguments: list[str], environment: dict[str, str], output: str) -> None:
    """A process of a run."""
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.set_num_threads(1)
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def launch(arguments: list[str], environment: dict[str, str], output: Path, processes: int) -> int:
    """Start processes as torchrun does: when one fails, the others are ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    started = []
    for rank in range(processes):
        place = {**group, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(processes)}
        whole = environment | (place if processes > 1 else {})
        started.append(FORKS.Process(target=_train, args=(arguments, whole, str(output))))
        started[-1].start()
    started[0].join(120)
    for process in started[1:]:
        process.join(30 if started[0].exitcode == 0 else 0)
        process.kill()
    assert started[0].exitcode is not None, output.read_text()
    return started[0].exitcode


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Callable[..., Run]:
    """start(name, options..., processes=, fault=, restarts=, own_group=) runs train.py on a small CUB; with
    restarts, by torchrun; with own_group, as the leader of a process group, as a shell in a terminal does."""
    folder = tmp_path_factory.mktemp("training")
    data = write_cub(folder / "CUB")
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))

    def run(
        name: str,
        *options: str,
        processes: int = 1,
        fault: str = "",
        restarts: int = 0,
        own_group: bool = False,
    ) -> Run:
        script = str(ROOT / "tests" / "train_with_fault.py" if fault else ROOT / "train.py")
        given = ["--config", str(folder / "config.yaml"), "--data", str(data), "--out", str(folder / name)]
        arguments = [script, *given, *options]
        environment = {"OMP_NUM_THREADS": "1", "FAULT": fault}
        if not restarts and not own_group:
            output = folder / f"{name} {len(list(folder.iterdir()))}.txt"
            status = launch(arguments, environment, output, processes)
            return Run(folder / name, status, output.read_text())
        command = [sys.executable]
        if restarts:
            command += ["-m", "torch.distributed.run", "--standalone", "--monitor-interval=0.2"]
            command += [f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
        done = subprocess.run(
            [*command, *arguments],
            start_new_session=own_group,
            env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )
        return Run(folder / name, done.returncode, done.stdout)

    return run


@pytest.fixture(scope="module")
def one_process(start) -> Path:
    return finished(start("one"))


@pytest.fixture(scope="module")
def two_processes(start) -> Path:
    return finished(start("two", processes=2))


def finished(run: Run) -> Path:
    assert run.status == 0, run.said
    return run.folder


def assert_equal_runs(first: Path, second: Path) -> None:
    """The same up to the order of float32 sums."""
    for row, other in zip(rows(first, "steps"), rows(second, "steps"), strict=True):
        # AdamW hardly sees the scale of a gradient: the losses alone would not tell that it is wrong.
        for name, tolerance in (("loss", 1e-5), ("gradient_norm", 1e-4)):
            assert float(row[name]) == pytest.approx(float(other[name]), rel=tolerance), name
    for name, value in weights(first).items():
        torch.testing.assert_close(weights(second)[name], value, rtol=1e-4, atol=2e-5, msg=name)


def test_run_folder(one_process):
    for name in MODELS:
        model = load_model(one_process / name)
        assert -1 <= model.config.threshold.value <= 2
        assert model.config.class_names == ["001.Bird_0", "002.Bird_1", "003.Bird_2"]
    saved = yaml.safe_load((one_process / "config.yaml").read_text())
    assert saved["betas"] == [0.9, 0.99]  # resolved: the paper preset's
    epochs = rows(one_process, "log")
    assert [row["epoch"] for row in epochs] == ["0", "1"]
    for name in ("lam", "beta"):
        first, second = ([float(row[f"{name}_{block}"]) for block in range(1, 5)] for row in epochs)
        assert all(before != after for before, after in zip(first, second, strict=True))
    assert (one_process / "evaluation" / "metrics.json").is_file()


@pytest.mark.parametrize("micro_batch", ["1", "null"], ids=["accumulation", "whole share"])
def test_two_processes_equal_one(start, one_process, two_processes, micro_batch):
    two = two_processes
    if micro_batch != "null":
        two = finished(start("two accumulating", "--micro-batch", micro_batch, processes=2))
        assert rows(two, "steps") != rows(two_processes, "steps")  # or it did not accumulate
    assert_equal_runs(one_process, two)


def test_batch_norm_is_validated_as_it_is_saved(start):
    """Each process has statistics of its own images, and only the first one's are in the file."""
    small = ("--backbone-options", "{depth: 3, embed_dim: 96, num_heads: 3}", "--image-size", "64")
    options = ("--backbone", "conformer_tiny_patch16", *small, "--lr", "1e-2", "--epochs", "1")
    run = finished(start("conformer", *options, processes=2))
    config = make_config(yaml.safe_load((run / "config.yaml").read_text()), "test")
    source = config.source()
    predictor = Predictor(load_model(run / "last"), torch.device("cpu"))
    alone = evaluate(predictor, source, validation_settings(config)).result.metrics
    (row,) = rows(run, "log")
    assert {name: float(row[name]) for name in alone} == pytest.approx(
        {name: metric.value for name, metric in alone.items()}
    )


def test_accumulation_equals_one_batch(start, one_process):
    assert_equal_runs(one_process, finished(start("one accumulating", "--micro-batch", "2")))


# What fast recipes are made of, off by default: each in the place where processes and resumed runs might differ.
FAST = (
    *(
        "--lr",
        "5e-4",
        "--head-lr",
        "1e-3",
        "--layer-decay",
        "0.7",
        "--frozen-blocks",
        "1",
        "--label-smoothing",
        "0.1",
    ),
    *("--average", "0.9", "--small-size", "16", "--small-epochs", "1", "--color-jitter", "0.3"),
)


# The fast recipe's method, on the 3 + 2 images of two processes: its area term is not a sum over images.
SAT = (
    *("--method", "sat", "--method-options", "{fusion: product, start: cls, area: 0.5}"),
    *("--backbone-options", "{patch_size: 8, embed_dim: 32, depth: 3, num_heads: 2, qkv_bias: false}"),
)


@pytest.mark.parametrize("method", [(), SAT], ids=["scm", "sat"])
def test_fast_training_is_as_exact(start, one_process, method):
    """Two processes equal one, and a run that was killed has the bits of one that was not."""
    options, name = (*FAST, *method), " ".join(("fast", *method[1:2]))
    whole = finished(start(name, *options))
    assert rows(whole, "steps") != rows(one_process, "steps")
    assert_equal_runs(whole, finished(start(f"{name} two", *options, processes=2)))
    for step in (2, 7):  # among small images and large ones
        killed = f"{name} killed {step}"
        assert start(killed, *options, "--checkpoint-steps", "2", fault=f"SIGKILL:{step}:0").status == -9
        resumed = finished(start(killed, *options, "--checkpoint-steps", "2", "--resume", "auto"))
        assert_same_run(whole, resumed)


def test_killed_run_resumes_bit_for_bit(start):
    random_depth = ("--drop-path-rate", "0.3")  # draws from the random state, which must be restored
    whole = finished(start("whole", *random_depth))
    # The first epoch is the best one, or a run that forgets it could not be told from one that does not.
    assert not torch.equal(weights(whole)["head.weight"], weights(whole, "best_gt_known")["head.weight"])
    killed = start("killed", *random_depth, fault="SIGKILL:7:0")
    assert killed.status == -9
    assert len(rows(killed.folder, "steps")) == 7  # of which the last checkpoint knows six
    resumed = start("killed", *random_depth, "--resume", "auto")
    assert "resumed" in resumed.said
    assert "step 6" in resumed.said
    assert_same_run(whole, finished(resumed))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("workers", [0, 2], ids=["alone", "with all processes of its group"])
def test_stopped_run_saves_a_checkpoint(start, one_process, name, workers):
    run, options = f"stopped {name} {workers}", ("--workers", str(workers))
    stopped = start(run, *options, fault=f"{name}:4:0", own_group=workers > 0)
    assert stopped.status == 128 + signal.Signals[name], stopped.said
    assert "Traceback" not in stopped.said
    assert stopped.said.count("stopping after this step") == 1
    assert f"stopped by {name} after step 5" in stopped.said
    assert_same_run(one_process, finished(start(run, *options, "--resume", "auto")))


@pytest.mark.parametrize("killed", [False, True], ids=["whole", "killed and resumed"])
def test_tensorboard_has_every_point_of_the_logs_once(start, killed):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    options = (f"tensorboard {killed}", "--tensorboard")
    if killed:
        assert start(*options, fault="SIGKILL:7:0").status == -9
    folder = finished(start(*options, "--resume", "auto", processes=1 if killed else 2))
    for log, place, tags in (
        ("steps", "step", {"step/loss": "loss", "step/lr": "lr", "step/gradient_norm": "gradient_norm"}),
        ("log", "epoch", {"epoch/train_loss": "train_loss", "epoch/gt_known": "gt_known", "lam/4": "lam_4",
                          "epoch/threshold": "threshold", "epoch/top1_cls": "top1_cls", "beta/1": "beta_1"}),
    ):  # fmt: skip
        events = accumulator.EventAccumulator(str(folder / "tensorboard" / f"{place}s")).Reload()
        with (folder / f"{log}.csv").open() as file:
            written = list(csv.DictReader(file))
        columns = written[0].keys() - {place, "threshold_rule"}  # where a point is, and a name
        assert len(events.Tags()["scalars"]) == len(columns)
        for tag, column in tags.items():
            points = [(event.step, event.value) for event in events.Scalars(tag)]
            assert points == [(int(row[place]), pytest.approx(float(row[column]))) for row in written], tag


def test_rank_that_dies_is_restarted_and_resumes(start, two_processes):
    run = start("restarted", processes=2, fault="SIGKILL:5:1", restarts=1)
    assert "resumed" in run.said
    assert_same_run(two_processes, finished(run))


def test_loss_that_is_no_number(start):
    run = start("diverging", "--lr", "1e30", "--checkpoint-steps", "1", processes=2)
    assert run.status == 1
    message = run.said[run.said.index("train.py: ") :]
    assert "at step 1 (epoch 0)" in message or "at step 2 (epoch 0)" in message
    assert "checkpoint.pt" in message
    assert message.count(".jpg") == 5  # of both processes
    assert all(value.isfinite().all() for value in weights(run.folder).values())


def test_more_processes_than_images(start):
    run = start("crowded", "--global-batch", "1", processes=2)
    assert run.status == 2
    assert "a global batch of 1 images is too small for 2 processes" in run.said
    assert not run.folder.exists()


def test_folder_with_another_run(start, one_process):
    untouched = (one_process / "checkpoint.pt").read_bytes()
    again = start("one")
    assert again.status == 2
    assert "--resume auto" in again.said
    other = start("one", "--resume", "auto", "--backbone", "vit_small_patch16_224")
    assert other.status == 2
    assert "backbone was 'vit_tiny_patch16_224' and is now 'vit_small_patch16_224'" in other.said
    assert (one_process / "checkpoint.pt").read_bytes() == untouched
