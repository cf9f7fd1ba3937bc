"""The processes that extract boxes: few, made once, and gone when they are not needed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest
import torch
from data_folders import write_cub
from training_runs import CONFIG

from scm_fast import create_model, save_model
from scm_fast.cli import main
from scm_fast.cli.train import train
from scm_fast.evaluation import Evaluator, extraction
from scm_fast.evaluation.extraction import MOST_WORKERS, Workers, kept_workers
from scm_fast.training import make_config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one thread extracts boxes")


@pytest.fixture
def before() -> set:
    return set(multiprocessing.active_children())


@pytest.fixture
def pools(monkeypatch) -> list[int]:
    """Processes of every pool that is made."""
    made: list[int] = []
    executor = extraction.ProcessPoolExecutor

    def noted(count, *arguments):
        made.append(count)
        return executor(count, *arguments)

    monkeypatch.setattr(extraction, "ProcessPoolExecutor", noted)
    return made


def evaluate_some(**options) -> tuple[Evaluator, int]:
    """An evaluator that was given four images, and the process of one of its workers."""
    with Evaluator(**options) as evaluator:
        maps = np.random.default_rng(0).random((4, 2, 14, 14))
        evaluator.accumulate(
            range(4), [0] * 4, [[1]] * 4, [[1.0]] * 4, maps, [[[0, 0, 9, 9]]] * 4, [[20, 20]] * 4
        )
        worker = evaluator._pool._workers._pool.submit(os.getpid).result()
        assert len(evaluator.compute()) == 4
    return evaluator, worker


@pytest.mark.parametrize(("cores", "workers"), [(64, MOST_WORKERS), (3, 3)])
def test_workers_are_bounded(monkeypatch, pools, cores, workers):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    Workers().close()
    Workers(40).close()  # if somebody wants so many
    assert pools == [workers, 40]


def test_workers_are_kept(before, pools):
    with kept_workers():
        started = set(multiprocessing.active_children()) - before
        assert len(started) == pools[0]
        with kept_workers():
            _, first = evaluate_some()
        _, second = evaluate_some(step=0.5, interpolation="linear")
        assert {first, second} <= {process.pid for process in started}
        assert set(multiprocessing.active_children()) - before == started
        _, own = evaluate_some(workers=1)
        assert own not in {process.pid for process in started}
    assert set(multiprocessing.active_children()) == before
    assert len(pools) == 2
    _, other = evaluate_some()
    assert other not in {process.pid for process in started}
    assert set(multiprocessing.active_children()) == before


def test_opencv_has_its_threads_between_evaluations():
    threads = cv2.getNumThreads()
    cv2.setNumThreads(3)
    try:
        with kept_workers():
            assert cv2.getNumThreads() == 3
            with Evaluator():
                assert cv2.getNumThreads() == 1
            assert cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(threads)


def test_the_time_of_the_workers_is_known():
    assert evaluate_some()[0].worker_seconds > 0


def test_a_run_forks_its_workers_once_and_before_a_device_is_taken(tmp_path, monkeypatch, pools, before):
    """Six passes over splits: two validations of the pretraining, three of the run, and the test split."""
    from scm_fast import distributed

    there = []
    start = distributed.start_processes

    def noted(*arguments):
        there.append(len(set(multiprocessing.active_children()) - before))
        return start(*arguments)

    monkeypatch.setattr(distributed, "start_processes", noted)
    data, out = str(write_cub(tmp_path / "CUB")), str(tmp_path / "run")
    options = {"pretraining": {"epochs": 2}, "epochs": 3, "data": data, "out": out}
    train(make_config({**CONFIG, **options}, "test"))
    assert len(pools) == 1
    assert there == pools
    assert set(multiprocessing.active_children()) == before


def test_evaluate_forks_its_workers_once(tmp_path, monkeypatch, pools):
    options = {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    model = create_model("vit_tiny_patch16_224", 3, image_size=32, backbone_options=options)
    save_model(model, tmp_path / "model")
    given = ["--checkpoint", str(tmp_path / "model"), "--data", str(write_cub(tmp_path / "CUB"))]
    assert main(["evaluate", *given, "--device", "cpu", "--workers", "0"]) == 0
    assert len(pools) == 1


AFTER_OPENCV_THREADS = """
import cv2, sys
import numpy as np
sys.path.insert(0, "tests")
from test_extraction import evaluate_some
from scm_fast.evaluation.extraction import kept_workers

cv2.setNumThreads(4)
for _ in range(2):
    cv2.GaussianBlur(np.zeros((2000, 2000), np.float32), (31, 31), 5)  # starts OpenCV's threads
    with kept_workers():
        for _ in range(3):
            cv2.GaussianBlur(np.zeros((2000, 2000), np.float32), (31, 31), 5)
            evaluate_some()
            assert cv2.getNumThreads() == 4
"""


def test_kept_workers_start_although_opencv_has_used_its_own_threads():
    subprocess.run([sys.executable, "-c", AFTER_OPENCV_THREADS], check=True, timeout=120)


KILLED = """
import multiprocessing, os, signal
from scm_fast.evaluation.extraction import kept_workers

with kept_workers():
    print(*(process.pid for process in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_a_process_that_is_killed():
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    left = [int(word) for word in done.stdout.split()]
    assert left
    for _ in range(200):
        left = [process for process in left if _runs(process)]
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(f"still there: {left}")


def _runs(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ctrl_c_is_left_to_the_process_that_is_worked_for():
    with kept_workers():
        _, worker = evaluate_some()
        os.kill(worker, signal.SIGINT)
        evaluate_some()
        assert _runs(worker)


def test_a_forked_process_has_workers_of_its_own():
    """It has no thread that would hand work to its parent's."""
    with kept_workers():
        process = multiprocessing.get_context("fork").Process(target=evaluate_some)
        process.start()
        process.join(60)
        assert process.exitcode == 0


def test_torch_forks_beside_them(tmp_path):
    """Loading processes are forked while the workers' threads are there."""
    with kept_workers():
        loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=2, num_workers=2)
        for _ in range(3):
            assert len(list(loader)) == 4
            evaluate_some()
