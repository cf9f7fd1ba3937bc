"""The benchmark of the time to accuracy, on a small CUB folder."""

import csv
import json
import signal
from pathlib import Path

import pytest
import time_to_accuracy
import yaml
from data_folders import write_cub
from safetensors.torch import save_file
from training_runs import CONFIG

from scm_fast import InputError, create_model
from scm_fast.training import Trainer, make_config
from scm_fast.training.recipes import read_recipe
from scm_fast.training.stopping import Interrupted


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(options...) is the command line; gives the rows of its table."""
    data = write_cub(tmp_path / "CUB")
    recipe = {
        name: value for name, value in CONFIG.items() if name not in ("workers", "device", "pretrained")
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(recipe | {"epochs": 3}))
    options = CONFIG["backbone_options"]
    backbone = create_model(CONFIG["backbone"], 3, "tscam", image_size=32, backbone_options=options).backbone
    save_file(backbone.state_dict(), tmp_path / "weights.safetensors")

    def main(*given: str) -> list[dict[str, str]]:
        command = ["time_to_accuracy.py", str(tmp_path / "small.yaml"), "--data", str(data)]
        command += [
            "--pretrained",
            str(tmp_path / "weights.safetensors"),
            "--out",
            str(tmp_path / "out"),
            *given,
        ]
        monkeypatch.setattr("sys.argv", command)
        time_to_accuracy.main()
        with (tmp_path / "out" / "time_to_accuracy.csv").open() as file:
            return list(csv.DictReader(file))

    return main


def test_the_clock_stops_at_the_mark(run, capsys):
    (row,) = run("--gt-known", "0", "--top1-loc", "0")
    assert (row["recipe"], row["reached"], row["epochs"]) == ("small", "True", "1")
    assert int(row["images"]) == int(row["steps"]) * 5 > 0
    assert float(row["core_minutes"]) > 0
    assert "core_minutes" in capsys.readouterr().out


def test_a_mark_that_is_not_reached(run):
    first, second = run("--gt-known", "101", "--seeds", "0", "1")
    assert (first["reached"], first["epochs"], second["seed"]) == ("False", "3", "1")
    assert first["top1_loc_mark"] == str(time_to_accuracy.TOP1_LOC)


def test_to_the_end(run):
    (row,) = run("--gt-known", "0", "--top1-loc", "0", "--to-the-end")
    assert (row["reached"], row["epochs"]) == ("True", "3")


def test_a_stopped_run_goes_on_with_its_clock(run, tmp_path, monkeypatch):
    validate = Trainer.validate_epoch

    def killed(trainer):
        validate(trainer)
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "validate_epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        run("--gt-known", "101")
    clock = tmp_path / "out" / "small-0" / "core_seconds.json"
    assert json.loads(clock.read_text())["1"] > 0
    clock.write_text(json.dumps({"1": 6000.0}))
    monkeypatch.setattr(Trainer, "validate_epoch", validate)
    (row,) = run("--gt-known", "101")
    assert row["epochs"] == "3"
    assert 100 < float(row["core_minutes"]) < 110


def test_a_run_that_a_signal_stops_keeps_the_time_of_its_steps(run, tmp_path, monkeypatch):
    step = Trainer._optimizer_step

    def signalled(trainer, *args):
        trainer.stop.number = signal.SIGTERM * (trainer.step == 1)
        return step(trainer, *args)

    monkeypatch.setattr(Trainer, "_optimizer_step", signalled)
    with pytest.raises(Interrupted, match="after step 2"):
        run("--gt-known", "101")
    clock = tmp_path / "out" / "small-0" / "core_seconds.json"
    assert json.loads(clock.read_text())["0"] > 0
    clock.write_text(json.dumps({"0": 6000.0}))
    (row,) = run("--gt-known", "101")
    assert (row["epochs"], row["steps"]) == ("3", "12")
    assert 100 < float(row["core_minutes"]) < 110


def test_a_run_without_its_clock(run, tmp_path):
    run("--gt-known", "0", "--top1-loc", "0")
    (tmp_path / "out" / "small-0" / "core_seconds.json").unlink()
    with pytest.raises(
        InputError, match=r"core_seconds\.json: not there, so the time of this run is not known"
    ):
        run("--gt-known", "101")


def test_a_finished_run_is_not_timed_again(run):
    run("--gt-known", "101")
    with pytest.raises(InputError, match=r"small-0: this run has come to its end before; give --out another"):
        run("--gt-known", "101")


def test_the_recipe_that_others_are_timed_against():
    """The paper's calibration with the official optimiser, as in lab/2026-11-16-ten-epochs-on-birds.md."""
    file = Path(time_to_accuracy.__file__).parent / "scm_ten_epochs.yaml"
    config = make_config(read_recipe(str(file)), str(file))
    assert (config.method, config.weight_decay, config.lr) == ("scm", 0.05, 5e-5)
    assert config.calibration == {"iterations": 4, "detach_init": False}
