"""`scm-fast compare` on run folders with known figures."""

import csv
import json
import sys
from pathlib import Path

import pytest

from scm_fast.cli import main
from scm_fast.runs.comparison import Summary, short_names
from scm_fast.training import make_config

BASELINES = {
    "full image": {"top1_loc": 20.0, "gt_known": 31.0, "max_box_acc_v2": 40.0},
    "centre box": {"top1_loc": 30.0, "gt_known": 50.7, "max_box_acc_v2": 55.5},
}


def write_run(
    path: Path,
    gt_known: float = 80.0,
    *,
    finished: bool = True,
    epochs_done: int = 3,
    images: int = 10,
    rule: str = "between",
    **fields,
) -> Path:
    """A run of three epochs, best in the second; gt_known on the test split, two points more in validation."""
    path.mkdir(parents=True)
    config = make_config({"epochs": 3, "data": "CUB", "out": str(path), **fields}, "test")
    config.save(path / "config.yaml")
    rows = [
        {"epoch": epoch, "steps": 10 * (epoch + 1), "lr": 0.1, "train_loss": 3.0 - epoch, "train_top1": 50.0,
         "images_per_second": 100.0 + epoch, "threshold": 0.1 * (epoch + 1),
         "threshold_rule": rule, "top1_cls": 60.0 + epoch,
         "top1_loc": 50.0, "gt_known": gt_known + (2 if epoch == 1 else 0), "max_box_acc_v2": 70.0}
        for epoch in range(epochs_done)
    ]  # fmt: skip
    if rows:
        with (path / "log.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    if finished:
        values = {"top1_cls": 61.0, "top1_loc": 48.0, "gt_known": gt_known, "max_box_acc_v2": 69.0}
        content = {
            "metrics": {name: {"value": value, "threshold": None} for name, value in values.items()},
            **{"baselines": BASELINES, "images": images, "threshold": 0.25, "protocol": config.protocol},
            "threshold_rule": rule,
        }
        (path / "evaluation").mkdir()
        (path / "evaluation" / "metrics.json").write_text(json.dumps(content))
    return path


def write_evaluation(path: Path, gt_known: float = 70.0, **entries) -> Path:
    """Write what `evaluate --model --map gradcam --out` does, as far as it is compared: no classification."""
    path.mkdir(parents=True)
    values = {"gt_known": gt_known, "max_box_acc": 66.0, "max_box_acc_v2": 55.0}
    content = {
        "metrics": {name: {"value": value, "threshold": None} for name, value in values.items()},
        "unboxed": {"metrics": {"gt_known": {"value": 68.0}}},
        **{"baselines": BASELINES, "images": 10, "threshold": 0.3, "threshold_rule": "deviation"},
        **{"protocol": "heldout", "checkpoint": "deit.pth", "backbone": "deit_tiny_patch16_224"},
        **{"method": "cls", "map": "gradcam", "strategy": "F0*S0", "mirror": False, "foreign_classes": True},
        **{"data": "/data/CUB", "split": "test", "interpolation": "cubic", "amp": None},
        "timing": {
            "seconds_per_image": 0.5,
            "cpu_seconds_per_image": 0.04,
            "device": "cpu",
            "threads": 1,
        },
        **entries,
    }
    (path / "metrics.json").write_text(json.dumps(content))
    return path


@pytest.fixture
def compare(capsys):
    def run(*arguments):
        status = main(["compare", *map(str, arguments)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def row(text: str, heading: str, name: str) -> dict[str, str]:
    """The cells of a line of the table under `heading`, by column; columns are two spaces apart."""
    lines = text[text.index(heading) :].splitlines()
    line = next(line for line in lines if line.startswith(f"{name}  "))
    ends = {}
    for column in lines[2].split("  "):
        if column.strip():
            ends[column.strip()] = lines[2].index(column.strip()) + len(column.strip())
    cells = {}
    for column, end in ends.items():  # to the right
        begin = line.rfind("  ", 0, end) if line[:end].strip() else 0
        cells[column] = line[begin:end].strip()
    return cells


def test_two_runs(tmp_path, compare):
    scm = write_run(tmp_path / "scm", 85.0)
    tscam = write_run(tmp_path / "tscam", 80.0, method="tscam", lr=1e-4)
    status, text, said = compare(scm, tscam)
    assert (status, said) == (0, "")
    assert row(text, "test split", "scm") == {
        **{"method": "scm", "preset": "paper", "backbone": "deit_small_patch16_224", "seed": "0"},
        **{"epochs": "3", "Top-1 cls": "61.0", "Top-1 loc": "48.0", "GT-Known": "85.0"},
        **{"unboxed": "-", "MaxBoxAcc": "-", "MaxBoxAccV2": "69.0", "threshold": "between 0.250"},
        **{"s/image": "-", "images/s": "101.0"},
    }
    assert row(text, "test split", "centre box")["GT-Known"] == "50.7"
    best = row(text, "validation split", "tscam")
    assert (best["epoch"], best["GT-Known"], best["threshold"]) == ("2", "82.0", "between 0.200")
    differing = text[text.index("configuration, where it differs") :].splitlines()[4:]
    assert [line.split() for line in differing if line] == [
        ["method", "scm", "tscam"],
        ["lr", "5.0e-05", "0.0001"],
    ]
    assert "warning" not in text


def test_evaluations_stand_below_the_runs(tmp_path, compare):
    run = write_run(tmp_path / "scm", 85.0)
    gradcam = write_evaluation(tmp_path / "map-gradcam")
    status, text, said = compare(gradcam, run)
    assert (status, said) == (0, "")
    assert "test split (test), the model that was kept and the models of evaluations" in text
    found = row(text, "test split", "map-gradcam")
    assert (found["method"], found["backbone"]) == ("gradcam", "deit_tiny_patch16_224")
    assert (found["GT-Known"], found["unboxed"], found["MaxBoxAcc"]) == ("70.0", "68.0", "66.0")
    assert (found["MaxBoxAccV2"], found["threshold"]) == ("55.0", "deviation 0.300")
    assert (found["Top-1 cls"], found["Top-1 loc"], found["s/image"]) == ("-", "-", "0.040")
    assert text.index("\nscm ") < text.index("\nmap-gradcam ")
    assert text.count("\nmap-gradcam ") == 1, "it has no epochs to validate"
    assert text.count("centre box") == 1, "the boxes that look at no image are the same"
    assert "warning" not in text
    (evaluation,) = json.loads(compare(gradcam, run, "--json")[1])["evaluations"]
    assert evaluation["test"]["gt_known"] == 70.0
    assert evaluation["test"]["top1_loc"] is None
    assert evaluation["test"]["seconds_per_image"] == 0.04


def test_evaluations_alone(tmp_path, compare):
    pytest.importorskip("matplotlib")
    folders = [
        write_evaluation(tmp_path / "a", map="rollout, refined"),
        write_evaluation(tmp_path / "b", map="of method scm", method="scm", foreign_classes=False),
        write_evaluation(
            tmp_path / "c", map="chefer", method="scm", foreign_classes=False, mirror=True, unboxed=None
        ),
    ]
    status, text, _ = compare(*folders)
    assert status == 0
    methods = [row(text, "test split", name)["method"] for name in "abc"]
    assert methods == ["rollout, refined", "scm", "scm, chefer, mirror"]
    assert row(text, "test split", "c")["unboxed"] == "-"
    assert "validation split" not in text
    status, text, said = compare(*folders, "--plot", tmp_path / "curves.png")
    assert (status, text) == (2, "")
    assert "--plot: draws the epochs of runs" in said


def test_time_on_a_gpu_is_what_passed(tmp_path, compare):
    timing = {
        "seconds_per_image": 0.002,
        "cpu_seconds_per_image": 0.04,
        "device": "NVIDIA H100",
        "threads": 8,
    }
    folders = [write_evaluation(tmp_path / "cpu"), write_evaluation(tmp_path / "gpu", timing=timing)]
    _, text, _ = compare(*folders)
    assert row(text, "test split", "gpu")["s/image"] == "0.002"
    assert (
        "warning: the conditions of s/image differ: cpu, threads: 1 (cpu), NVIDIA H100, threads: 8 (gpu)"
        in text
    )


def test_evaluations_that_cannot_be_compared(tmp_path, compare):
    run = write_run(tmp_path / "run")
    others = {"data": "ILSVRC", "split": "dev", "protocol": "maxbox", "images": 50, "amp": "bfloat16"}
    other = write_evaluation(tmp_path / "other", **others)
    warnings = compare(run, other)[1].splitlines()
    for sentence in (
        "the data differ: CUB (run), ILSVRC (other)",
        "the test splits differ: test (run), dev (other)",
        "the protocols differ: heldout (run), maxbox (other)",
        "the numbers of test images differ: 10 (run), 50 (other)",
        "the precisions of the test differ: float32 (run), bfloat16 (other)",
    ):
        assert f"warning: {sentence}" in warnings
    (tmp_path / "other" / "metrics.json").write_text('{"metrics": {}}')
    assert "not the metrics of an evaluation (no baselines" in compare(run, other)[2]


def test_seeds_are_repetitions(tmp_path, compare):
    seeds = [write_run(tmp_path / f"s{s}", g, seed=s, workers=s) for s, g in enumerate((80.0, 84.0, 85.0))]
    other = write_run(tmp_path / "other", 70.0, preset="official")
    _, text, _ = compare(*seeds, other)
    group = row(text, "test split", "s0, s1, s2")
    assert group["seed"] == "0, 1, 2"
    assert group["GT-Known"] == "83.0 ± 2.6"  # sqrt((9 + 1 + 4) / 2)
    assert row(text, "test split", "other")["GT-Known"] == "70.0"
    assert "seed  " not in text[text.index("configuration") :]
    _, text, _ = compare(*seeds, other, "--json")
    first, second = json.loads(text)["groups"]
    assert first["test"]["gt_known"] == {"mean": 83.0, "standard_deviation": pytest.approx(7**0.5), "runs": 3}
    assert [run["seed"] for run in first["runs"]] == [0, 1, 2]
    assert second["test"]["gt_known"] == {"mean": 70.0, "standard_deviation": None, "runs": 1}
    assert json.loads(text)["differences"]["preset"] == ["paper", "official"]


def test_thresholds_of_different_rules_have_no_mean(tmp_path, compare):
    runs = [
        write_run(tmp_path / f"s{s}", seed=s, rule=r) for s, r in enumerate(("between", "between", "global"))
    ]
    _, text, _ = compare(*runs[:2])
    assert row(text, "test split", "s0, s1")["threshold"] == "between 0.250 ± 0.000"
    _, text, _ = compare(*runs)
    assert row(text, "test split", "s0, s1, s2")["threshold"] == "between, global"
    _, text, _ = compare(*runs, "--json")
    (group,) = json.loads(text)["groups"]
    assert group["threshold_rules"] == {"test": ["between", "global"], "validation": ["between", "global"]}
    assert group["test"]["threshold"] is None


def test_same_seed_twice(tmp_path, compare):
    again = [write_run(tmp_path / name) for name in ("a", "b")]
    assert "a, b: runs of one seed are no independent repetitions" in compare(*again)[1]
    once = compare(again[0], again[1] / ".." / "a")[1]  # one run, given twice
    assert row(once, "test split", "a")["GT-Known"] == "80.0"


def test_runs_that_cannot_be_compared(tmp_path, compare):
    first = write_run(tmp_path / "first")
    others = {"data": "/data/ILSVRC", "protocol": "published", "train_split": "trainval", "val_split": "test"}
    second = write_run(tmp_path / "second", images=50, **others)
    _, text, _ = compare(first, second)
    warnings = [line for line in text.splitlines() if line.startswith("warning: ")]
    assert "warning: the data differ: CUB (first), ILSVRC (second)" in warnings
    assert "warning: the protocols differ: heldout (first), published (second)" in warnings
    assert "warning: the validation splits differ: val (first), test (second)" in warnings
    assert "warning: the numbers of test images differ: 10 (first), 50 (second)" in warnings
    assert json.loads(compare(first, second, "--json")[1])["warnings"][0].startswith("the data differ")


def test_unfinished_runs(tmp_path, compare):
    whole = write_run(tmp_path / "whole", 80.0)
    stopped = write_run(tmp_path / "stopped", 84.0, finished=False, epochs_done=2, seed=1)
    begun = write_run(tmp_path / "begun", finished=False, epochs_done=0, method="tscam")
    status, text, _ = compare(whole, stopped, begun)
    assert status == 0
    group = row(text, "test split", "whole, stopped")
    assert (group["GT-Known"], group["epochs"]) == ("80.0 (of 1)", "2 to 3 of 3")
    assert row(text, "validation split", "whole, stopped")["GT-Known"] == "84.0 ± 2.8"
    alone = row(text, "test split", "begun")
    assert (alone["GT-Known"], alone["epochs"]) == ("-", "0 of 3")
    assert "warning: stopped is not finished: 2 of 3 epochs" in text
    assert "warning: begun is not finished: 0 of 3 epochs" in text


def test_folders_of_one_name(tmp_path):
    paths = [tmp_path / "monday" / "scm", tmp_path / "tuesday" / "scm"]
    assert list(short_names(paths).values()) == ["monday/scm", "tuesday/scm"]


def test_summary():
    assert Summary.of([None, float("nan")]) is None
    assert Summary.of([1.0, None, 3.0]) == Summary(2.0, pytest.approx(2**0.5), 2)


def test_curves_of_all_runs(tmp_path, compare, monkeypatch):
    pytest.importorskip("matplotlib")
    runs = [
        write_run(tmp_path / "a"),
        write_run(tmp_path / "b", method="tscam", finished=False, epochs_done=0),
    ]
    status, _, said = compare(*runs, "--plot", tmp_path / "pictures" / "curves.png")
    assert status == 0
    assert said == f"{tmp_path / 'pictures' / 'curves.png'}\n"
    assert (tmp_path / "pictures" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert compare(*runs, "--plot", tmp_path / "curves.bmp")[0] == 2
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'scm-fast[plots]'" in compare(*runs, "--plot", tmp_path / "c.png")[2]
    assert compare(*runs)[0] == 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "config.yaml").unlink(), "not a run folder"),
        (lambda run: (run / "config.yaml").write_text("epoch: 3"), "config.yaml: unknown option 'epoch'"),
        (
            lambda run: (run / "evaluation" / "metrics.json").write_text("{"),
            "not the metrics of an evaluation",
        ),
        (
            lambda run: (run / "log.csv").write_text("epoch,loss\n0,high\n"),
            "log.csv: row 1 is not of numbers",
        ),
    ],
    ids=["no config", "config typo", "broken metrics", "broken log"],
)
def test_folders_that_are_no_runs(tmp_path, compare, damage, message):
    run = write_run(tmp_path / "run")
    damage(run)
    status, text, said = compare(run)
    assert (status, text) == (2, "")
    assert message in said
