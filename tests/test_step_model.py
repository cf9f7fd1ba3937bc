"""The model of a training step: its limits by hand, its tables, and measured times in their place."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

import step_model
from kernel_launches import Step
from step_model import GPUS, MARK, Work, measured, sources, table

GPU = replace(GPUS["H100"], multiprocessors=10, clock=1e9, memory=1e12, l2=2e12)
WORK = Work(
    "example",
    programs=100,
    warps=8,
    bytes=3_000_000,
    sectors=100_000,
    instructions=280_000,
    load_store_cycles=50_000,
    path_cycles=1_000,
    registers=61,
    shared=1024,
)


def test_limits_by_hand():
    assert WORK.resident(GPU) == 4  # 64 registers of 256 threads, a quarter of 65,536
    assert WORK.parts(GPU) == pytest.approx(
        {"memory": 3.0, "L2": 1.6, "issue": 10.0, "load/store": 5.0, "rounds": 3.0}
    )


@pytest.mark.parametrize(
    ("change", "resident"),
    [
        ({"registers": 255}, 1),
        ({"registers": 32}, 8),
        ({"registers": 16, "warps": 1}, 32),
        ({"registers": 16, "shared": 100 * 1024}, 2),
        ({"registers": 16, "shared": 0}, 8),
    ],
    ids=str,
)
def test_programs_that_run_at_once(change, resident):
    assert replace(WORK, **change).resident(GPU) == resident


def test_the_longest_limit_of_every_launch_counts():
    lines = table(Step(128), GPU, [WORK, replace(WORK, instructions=0)])
    assert lines[-3].endswith("| **10.0** |")
    assert lines[-2].endswith("| **5.0** |")
    assert lines[-1].endswith("| **15.0** |")
    lines = table(Step(128), GPU, [WORK, WORK], times=[7.25, 1.0])
    assert lines[2].endswith("| model, us | measured, us |")
    assert lines[-3].endswith("| **10.0** | 7.2 |")
    assert lines[-1].endswith("| **20.0** | 8.2 |")


def test_every_launch_is_measured(monkeypatch):
    """Measure as on a GPU; here the times are made up, and the tensors on the CPU."""
    monkeypatch.setattr(step_model, "replace", lambda step, device: step)
    timed = []
    monkeypatch.setattr(
        step_model.triton.testing, "do_bench", lambda run, return_mode: timed.append(run) or len(timed) / 1e3
    )
    assert measured(Step(1, 8, (4, 5), (1,), torch.bfloat16, True)) == pytest.approx([1, 2, 3, 4, 5, 6])
    for run in timed:
        run()  # the launch can be carried out, as often as it is asked for


def test_every_output_says_what_it_is(monkeypatch, capsys):
    monkeypatch.setattr(step_model, "step_work", lambda step, gpu: [WORK])
    monkeypatch.setattr(step_model, "measured", lambda step: [7.0])
    step_model.main(["--gpu", "A100", "--classes", "200"])
    assert MARK in capsys.readouterr().out
    step_model.main(["--measure"])
    printed = capsys.readouterr().out
    assert MARK not in printed
    assert printed.count("measured, us") == 2 * len(GPUS)


def test_every_gpu_names_its_sources():
    assert all(
        gpu.source in line for gpu, line in zip(GPUS.values(), sources(list(GPUS.values()))[2:], strict=True)
    )


@pytest.mark.compiled
@pytest.mark.parametrize(("classes", "limit"), [(200, 80), (1000, 180)])
def test_step_of_training_on_an_h100(classes, limit):
    """bf16 channels-last, 128 images of 14 x 14 tokens, by the model, in microseconds."""
    step = Step(128, classes, dtype=torch.bfloat16, channels_last=True)
    work = step_model.step_work(step, GPUS["H100"])
    assert len(work) == 6
    assert sum(max(each.parts(GPUS["H100"]).values()) for each in work) <= limit
