"""Configuration, optimiser, run folder and what a trainer refuses."""

import csv
import dataclasses
import errno
import functools
import math
import os
import re
import shutil
import struct
import sys
from pathlib import Path

import pytest
import torch
import yaml
from data_folders import write_cub, write_folder
from safetensors.torch import load_file
from torch import nn
from tqdm import tqdm

import scm_fast.data.source as source_module
import scm_fast.training.trainer as trainer_module
from scm_fast import InputError, create_model, distributed, load_model
from scm_fast.cli import main
from scm_fast.cli.program import Parser
from scm_fast.cli.train import train
from scm_fast.data import open_dataset
from scm_fast.data.layouts import registry
from scm_fast.files import readable_size, replacing
from scm_fast.spatial_calibration import PRESETS
from scm_fast.threshold import DEFAULT_THRESHOLD, Threshold
from scm_fast.training import TrainConfig, Trainer, make_config
from scm_fast.training.config import PRESET_DEFAULTS, batch_for
from scm_fast.training.logs import CsvLog
from scm_fast.training.optimization import build_optimizer, build_scheduler
from scm_fast.training.pretraining import pretrain
from scm_fast.training.recipes import add_options, config_from_options
from scm_fast.training.validation import evaluate_kept_model

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "configs").glob("*.yaml"))
CPU = torch.device("cpu")
TINY = {
    "backbone": "vit_tiny_patch16_224",
    "backbone_options": {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
    "pretrained": False,
    "image_size": 32,
    "epochs": 1,
    "warmup_epochs": 0,
    "global_batch": 5,
    "workers": 0,
    "device": "cpu",
    "report": False,
}


@pytest.fixture(scope="module")
def cub(tmp_path_factory) -> str:
    return str(write_cub(tmp_path_factory.mktemp("data") / "CUB"))


def parse_config(given: list[str]) -> TrainConfig:
    """Read options as `scm-fast train` reads its command line."""
    parser = Parser("scm-fast train", None)
    add_options(parser)
    return config_from_options(parser.parse_args(given))


def tiny(out: Path, data: str, **fields) -> TrainConfig:
    return make_config({**TINY, "data": data, "out": str(out), **fields}, "test")


class TestConfig:
    def test_file_and_command_line(self, tmp_path):
        file = tmp_path / "c.yaml"
        file.write_text("lr: 3e-4\nglobal_batch: 32\ndata: birds\n")
        given = [
            "--config",
            str(file),
            "--global-batch",
            "64",
            "--calibration",
            "{num_blocks: 2}",
            "--compile",
        ]
        config = parse_config(given)
        assert (config.lr, config.global_batch, config.data) == (3e-4, 64, "birds")
        assert config.calibration == {"num_blocks": 2}
        assert config.compile is True

    def test_everything_is_an_option(self):
        changed = {"lr": 0.5, "epochs": 7, "betas": [0.5, 0.6], "images": "photos", "skip_bad_images": True}
        values = make_config({"preset": "official"}, "test").as_dict() | changed
        texts = {k: v if isinstance(v, str) else yaml.safe_dump(v) for k, v in values.items()}
        options = [(f"--{name.replace('_', '-')}", text) for name, text in texts.items()]
        config = parse_config([word for option in options for word in option])
        assert config.as_dict() == values

    def test_without_arguments_it_is_the_builtin_set(self):
        assert parse_config([]).data == "synthetic"
        assert parse_config(["--method", "tscam"]).image_size == 96
        assert parse_config(["--data", "birds"]).backbone == "deit_small_patch16_224"

    def test_presets_fill_in_the_optimiser(self):
        paper, official = make_config({}, "test"), make_config({"preset": "official"}, "test")
        assert (paper.betas, paper.weight_decay, paper.drop_path_rate) == ((0.9, 0.99), 5e-4, 0.0)
        assert (official.betas, official.weight_decay, official.drop_path_rate) == ((0.9, 0.999), 0.05, 0.1)
        assert make_config({"preset": "official", "weight_decay": 0.1}, "test").weight_decay == 0.1

    @pytest.mark.parametrize(
        "name", ["birds #2", "2024_11_16", "007", "no", "1e3", "2024-11-16", "[a", "null", "~"]
    )
    def test_text_is_taken_literally(self, tmp_path, name):
        config = parse_config(["--data", name, "--pretrained", "false"])
        assert (config.data, config.pretrained) == (name, False)
        if name not in ("null", "~"):  # `out` may be None
            assert parse_config(["--out", name]).out == name
        config.save(tmp_path / "saved.yaml")
        assert parse_config(["--config", str(tmp_path / "saved.yaml")]).data == name

    def test_text_in_a_file_is_taken_literally(self, tmp_path):
        file = tmp_path / "c.yaml"
        file.write_text(
            "data: 007\nout: 2024-11-16\nresume: no\ntrain_split: 2\nimages: null\npretrained: no\n"
        )
        config = parse_config(["--config", str(file)])
        assert (config.data, config.out, config.resume) == ("007", "2024-11-16", "no")
        assert (config.train_split, config.images, config.pretrained) == ("2", None, False)

    def test_resume_no(self):
        assert parse_config(["--data", "x", "--resume", "no"]).resume == "no"

    def test_choices_come_from_the_registries(self, monkeypatch):
        assert set(PRESET_DEFAULTS) == set(PRESETS)
        with pytest.raises(InputError, match="layout 'mine': expected one of auto, cub"):
            parse_config(["--layout", "mine"])
        monkeypatch.setitem(
            registry._layouts, "mine", dataclasses.replace(registry._layouts["cub"], name="mine")
        )
        assert parse_config(["--layout", "mine"]).layout == "mine"

    def test_saved_configuration_is_the_same(self, tmp_path):
        config = make_config({"preset": "official", "calibration": {"num_blocks": 2}}, "test")
        config.save(tmp_path / "config.yaml")
        assert parse_config(["--config", str(tmp_path / "config.yaml")]) == config

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (["--method", "tscan"], "method 'tscan': did you mean 'tscam'"),
            (["--best-metric", "gtknown"], "did you mean 'gt_known'"),
            (["--lr", "-1"], "lr: input should be greater than 0, got -1"),
            (["--epochs", "many"], "epochs: input should be a valid integer"),
            (["--epochs", "2", "--warmup-epochs", "2"], "warmup_epochs: 2 leaves nothing of 2 epochs"),
            (["--protocol", "fixed"], "`protocol: fixed` and a `threshold` go together"),
            (["--train-split", "trainval"], "trainval has the images of val_split in it"),
            (["--data", "x", "--pretraining", "{epochs: 2}"], "goes with `pretrained: false`"),
            (["--resize", "200"], "resize: 200 is smaller than the crop"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_mistakes_on_the_command_line(self, given, message):
        with pytest.raises(InputError) as error:
            parse_config(["--data", "x", *given])
        assert message in str(error.value)

    @pytest.mark.parametrize(
        ("calibration", "message"),
        [
            ("{method: dense}", "the calibration has no method; it has num_blocks"),
            ("{solver: fast}", "solver must be one of stencil, dense or auto, got 'fast'"),
            ("{iterations: many}", "iterations must be"),
            ("{detach_init: 3}", "detach_init must be true or false, got 3"),
            ("{num_blocks: two}", "num_blocks must be a positive integer, got 'two'"),
            ("{1: 2}", "calibration"),
            ("dense", "calibration"),
        ],
    )
    def test_wrong_calibration_is_one_line(self, cub, tmp_path, capsys, calibration, message):
        given = {**TINY, "data": cub, "out": str(tmp_path / "run"), "calibration": calibration}
        options = [
            word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))
        ]
        assert main(["train", *options]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert lines[-1].startswith("scm-fast train: error: ")
        assert message in lines[-1]
        assert not any("Traceback" in line for line in lines)

    def test_mistyped_option(self, capsys):
        with pytest.raises(SystemExit) as stop:
            parse_config(["--epoch", "3"])
        assert stop.value.code == 2
        assert "unknown option --epoch; did you mean --epochs?" in capsys.readouterr().err

    def test_recipe_by_name(self):
        by_name, by_path = (
            parse_config(["--config", config])
            for config in ("cub_deit_tiny", str(ROOT / "configs/cub_deit_tiny.yaml"))
        )
        assert by_name == by_path
        with pytest.raises(InputError, match=r"--config cub_deit: no such file.*cub_deit_tiny"):
            parse_config(["--config", "cub_deit"])

    def test_mistakes_in_a_file_name_it(self, tmp_path):
        file = tmp_path / "mine.yaml"
        file.write_text("global_bach: 32\n")
        with pytest.raises(
            InputError, match=r"mine\.yaml: unknown option 'global_bach': did you mean 'global_batch'"
        ):
            parse_config(["--config", str(file)])
        file.write_text("lr: [1\n")
        with pytest.raises(InputError, match=r"mine\.yaml: not a YAML file"):
            parse_config(["--config", str(file)])
        with pytest.raises(InputError, match=r"none\.yaml: no such file"):
            parse_config(["--config", str(tmp_path / "none.yaml")])

    @pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
    def test_recipes(self, recipe):
        config = parse_config(["--config", str(recipe)])
        create_model(
            config.backbone,
            3,
            config.method,
            preset=config.preset,
            image_size=config.image_size,
            backbone_options=config.backbone_options,
            method_options=config.method_options,
            calibration=config.calibration,
        )

    @pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
    def test_a_recipe_serves_another_method(self, recipe):
        """Options of its own are left out unless they are given."""
        own = parse_config(["--config", str(recipe)])
        assert parse_config(["--config", str(recipe), "--method", own.method]) == own
        assert parse_config(["--config", str(recipe), "--method", "tscam"]).method_options == {}
        options = ["--method-options", "{area: 0.1}"]
        assert parse_config(["--config", str(recipe), "--method", "sat", *options]).method_options == {
            "area": 0.1
        }


class TestOptimization:
    def test_groups_of_the_presets(self):
        model = create_model(TINY["backbone"], 3, backbone_options=TINY["backbone_options"], image_size=32)
        names = {id(parameter): name for name, parameter in model.named_parameters()}

        def decays(preset: str) -> dict[str, float]:
            groups = build_optimizer(model, make_config({"preset": preset}, "test")).param_groups
            return {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}

        assert set(decays("paper").values()) == {5e-4}
        official = decays("official")
        assert official.keys() == set(names.values())
        spared = {name for name, decay in official.items() if decay == 0}
        assert {"backbone.pos_embed", "backbone.cls_token", "calibration.lam", "calibration.beta"} <= spared
        assert "head.weight" not in spared
        assert "head.bias" in spared

    def test_schedule(self):
        config = make_config({"lr": 1.0, "min_lr": 0.1, "epochs": 5, "warmup_epochs": 1}, "test")
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler = build_scheduler(optimizer, config, steps_per_epoch=4)
        rates = []
        for _ in range(20):
            rates.append(scheduler.get_last_lr()[0])
            optimizer.step()
            scheduler.step()
        assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
        assert rates[12] == pytest.approx(0.1 + 0.9 / 2)  # half of the cosine
        assert rates == sorted(rates[:5]) + sorted(rates[5:], reverse=True)
        assert scheduler.get_last_lr()[0] == pytest.approx(0.1)


class TestRunFolder:
    def test_replacing_keeps_the_old_file_when_it_fails(self, tmp_path):
        path = tmp_path / "file"
        path.write_text("old")
        with pytest.raises(OSError, match="full"), replacing(path) as partial:  # noqa: PT012
            partial.write_text("half")
            raise OSError(errno.ENOSPC, "full")
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["file"]

    def test_log_forgets_what_will_be_written_again(self, tmp_path):
        log = CsvLog(tmp_path / "log.csv")
        for step in range(5):
            log.add({"step": step, "loss": 0.1 * step})
        with log.path.open("a") as file:
            file.write("5")  # the run was killed here
        log.keep_below("step", 3)
        log.add({"step": 3, "loss": 7.0})
        with log.path.open() as file:
            assert [row["step"] for row in csv.DictReader(file)] == ["0", "1", "2", "3"]

    def test_log_gets_columns_that_come_later(self, tmp_path):
        log = CsvLog(tmp_path / "log.csv")
        log.add({"epoch": 0, "top1_cls": 30.0})
        log = CsvLog(log.path)  # of the run that is resumed, with boxes
        log.keep_below("epoch", 1)
        log.add({"epoch": 1, "gt_known": 80.0, "top1_cls": 40.0})
        log.add({"epoch": 2, "top1_cls": 50.0})
        CsvLog(log.path).keep_below("epoch", 2)
        with log.path.open() as file:
            rows = [dict(row) for row in csv.DictReader(file)]
        assert rows == [
            {"epoch": "0", "top1_cls": "30.0", "gt_known": ""},
            {"epoch": "1", "top1_cls": "40.0", "gt_known": "80.0"},
        ]

    def test_run_that_never_came_to_a_checkpoint_starts_its_logs_anew(self, tmp_path, cub):
        for _ in range(2):
            trainer = Trainer(tiny(tmp_path / "run", cub, epochs=2), CPU)
            trainer.logs.add_step({"step": 0, "loss": 1.0})  # and the process is killed
        assert (tmp_path / "run" / "steps.csv").read_text().splitlines() == ["step,loss", "0,1.0"]

    def test_tensorboard_that_is_not_installed(self, tmp_path, cub, monkeypatch):
        monkeypatch.setitem(sys.modules, "tensorboard", None)  # importing it fails
        with pytest.raises(InputError, match=r"--tensorboard needs tensorboard.*scm-fast\[tensorboard\]"):
            Trainer(tiny(tmp_path / "run", cub, tensorboard=True), CPU)
        assert not (tmp_path / "run").exists()
        Trainer(tiny(tmp_path / "run", cub), CPU)

    def test_folder_that_cannot_be_written(self, tmp_path, cub):
        (tmp_path / "taken").write_text("a file")
        with pytest.raises(InputError, match=r"taken.*the run folder cannot be written"):
            Trainer(tiny(tmp_path / "taken" / "run", cub), CPU)

    def test_disk_without_room(self, tmp_path, cub, monkeypatch):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000))
        with pytest.raises(InputError, match=r"checkpoints need 1\.19 MB, and 1 kB are free"):
            Trainer(tiny(tmp_path / "run", cub), CPU)

    def test_room_is_not_asked_for_what_is_there(self, tmp_path, cub, monkeypatch):
        Trainer(tiny(tmp_path / "run", cub, epochs=1), CPU).fit()
        left = 10**6  # the second checkpoint fits, all of them do not
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, left))
        Trainer(tiny(tmp_path / "run", cub, epochs=1, resume="auto"), CPU)
        with pytest.raises(InputError, match="checkpoints need"):
            Trainer(tiny(tmp_path / "another", cub, epochs=1), CPU)

    def test_a_run_goes_on_in_fp16(self, tmp_path, cub):
        """The machine is like a GPU without bf16."""
        trainer = Trainer(tiny(tmp_path / "run", cub, epochs=2), CPU)
        trainer.train_epoch()
        trainer.save()
        resumed = Trainer(tiny(tmp_path / "run", cub, epochs=2, resume="auto", amp="fp16"), CPU)
        assert resumed.step == trainer.step
        resumed.train_epoch()

    def test_sizes_for_people(self):
        sizes = (0, 999, 4096, 17.2e6, 2.5e9, 4e12)
        expected = ["0 bytes", "999 bytes", "4.1 kB", "17.2 MB", "2.5 GB", "4 TB"]
        assert [readable_size(size) for size in sizes] == expected

    def test_disk_that_fills_up(self, tmp_path, cub, monkeypatch):
        trainer = Trainer(tiny(tmp_path / "run", cub), CPU)
        trainer.save()
        good = trainer.folder.checkpoint_file.read_bytes()

        def full(state, path):
            path.write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(torch, "save", full)
        with pytest.raises(
            InputError, match=r"could not be written .*No space left.*last good one: .*checkpoint.pt"
        ):
            trainer.save()
        assert trainer.folder.checkpoint_file.read_bytes() == good

    def test_checkpoint_of_another_architecture(self, tmp_path, cub):
        Trainer(tiny(tmp_path / "other", cub, backbone_options={"patch_size": 8, "embed_dim": 48, "depth": 1,
                                                                 "num_heads": 2}), CPU).save()  # fmt: skip
        Trainer(tiny(tmp_path / "run", cub), CPU).save()
        shutil.copy(tmp_path / "other" / "checkpoint.pt", tmp_path / "run" / "checkpoint.pt")
        with pytest.raises(
            InputError, match=r"checkpoint\.pt does not fit the model.*missing in the file.*blocks\.1"
        ):
            Trainer(tiny(tmp_path / "run", cub, resume="auto"), CPU)


class TestTrainer:
    def test_pretraining_comes_first(self, tmp_path, cub):
        fields = {
            "pretraining": {"epochs": 2, "lr": 1e-3},
            "lr": 1e-9,
            "preset": "official",
            "drop_path_rate": 0.0,
        }
        config = tiny(tmp_path / "run", cub, **fields)
        weights = pretrain(config, CPU, config.source())
        assert weights == tmp_path / "run/pretraining/best_top1_cls"
        first = load_model(weights)
        assert first.config.method == "cls"
        assert len(list(csv.DictReader((weights.parent / "log.csv").open()))) == 2
        Trainer(config, CPU, start_from=weights).fit()  # so slowly that it stays there
        found = load_model(tmp_path / "run/last")
        assert found.config.method == "scm"
        torch.testing.assert_close(
            found.backbone.state_dict(), first.backbone.state_dict(), rtol=1e-4, atol=1e-5
        )
        assert make_config(yaml.safe_load((tmp_path / "run/config.yaml").read_text()), "saved") == config
        # Resumed, there is nothing left to do.
        before = (weights.parent / "checkpoint.pt").stat().st_mtime_ns
        assert pretrain(dataclasses.replace(config, resume="auto"), CPU, config.source()) == weights
        assert (weights.parent / "checkpoint.pt").stat().st_mtime_ns == before

    def test_wrong_folder(self, tmp_path):
        with pytest.raises(InputError, match="nowhere: no such folder"):
            Trainer(tiny(tmp_path / "run", str(tmp_path / "nowhere")), CPU)
        assert not (tmp_path / "run").exists()

    def test_batch_larger_than_the_data(self, tmp_path, cub):
        with pytest.raises(InputError, match=r"do not fill one global batch of 50; .* --global-batch 4"):
            Trainer(tiny(tmp_path / "run", cub, global_batch=50), CPU)

    @pytest.mark.parametrize(
        ("images", "batch"), [(5, 5), (54, 8), (500, 8), (1600, 16), (5000, 32), (5994, 32), (10**6, 256)]
    )
    def test_a_batch_by_the_number_of_images(self, images, batch):
        assert batch_for(images) == batch

    @pytest.mark.parametrize(
        ("images", "epochs"), [(90, 10), (2000, 10), (2001, 10), (3000, 7), (5000, 4), (10**6, 4)]
    )
    def test_a_budget_of_images_bounds_the_epochs(self, images, epochs):
        config = make_config({"epochs": 10, "image_budget": 20_000}, "test")
        assert config.for_images(images).epochs == epochs
        assert config.for_images(images).for_images(images) == config.for_images(images)
        assert make_config({"epochs": 10}, "test").for_images(images).epochs == 10
        assert make_config({"epochs": 3, "image_budget": 20_000}, "test").for_images(images).epochs == 3

    def test_a_small_folder_trains_by_itself(self, tmp_path, caplog):
        """Options are as `--help` advises, with no batch given; a resumed run keeps what was chosen."""
        write_folder(tmp_path / "mine", per_class=20)  # 14 training images of each class
        options = {name: value for name, value in TINY.items() if name != "global_batch"}
        config = make_config(options | {"data": str(tmp_path / "mine"), "out": str(tmp_path / "run")}, "test")
        train(config)
        assert "--global-batch" not in caplog.text
        saved = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
        assert saved["global_batch"] == 8
        assert len(list(csv.DictReader((tmp_path / "run/steps.csv").open()))) == 3
        Trainer(dataclasses.replace(config, resume="auto"), CPU)
        with pytest.raises(InputError, match="global_batch was 8 and is now 4"):
            Trainer(dataclasses.replace(config, resume="auto", global_batch=4), CPU)

    def test_a_finished_run_is_extended_where_the_learning_rate_stays(self, tmp_path, cub):
        """The weights are those of a run that was begun with so many epochs."""
        constant = {"lr": 1e-3, "min_lr": 1e-3, "warmup_epochs": 0.5}
        for name, epochs in (("extended", (1, 3)), ("whole", (3,))):
            for count in epochs:
                trainer = Trainer(tiny(tmp_path / name, cub, epochs=count, resume="auto", **constant), CPU)
                trainer.fit()
            assert [row["epoch"] for row in csv.DictReader((tmp_path / name / "log.csv").open())] == [
                *("0", "1", "2")
            ]
        extended, whole = (
            load_model(tmp_path / name / "last").state_dict() for name in ("extended", "whole")
        )
        torch.testing.assert_close(extended, whole, rtol=0, atol=0)
        with pytest.raises(InputError, match="more epochs, not fewer"):
            Trainer(tiny(tmp_path / "whole", cub, epochs=2, resume="auto", **constant), CPU)

    def test_a_run_whose_learning_rate_falls_is_not_extended(self, tmp_path, cub):
        Trainer(tiny(tmp_path / "run", cub), CPU).fit()
        reason = (
            r"epochs was 1 and is now 2: its learning rate falls from 5e-05 to 0 over the epochs .*"
            r"--pretrained .*run/last --out another folder"
        )
        with pytest.raises(InputError, match=reason):
            Trainer(tiny(tmp_path / "run", cub, epochs=2, resume="auto"), CPU)

    def test_what_is_wrong_is_known_before_weights_are_loaded(self, tmp_path, cub, monkeypatch):
        def fail(*args: object) -> None:
            raise AssertionError("a model was made")

        Trainer(tiny(tmp_path / "done", cub), CPU).save()
        broken = write_cub(tmp_path / "CUB")
        with open(open_dataset(broken, "test").records[0].path, "r+b") as image:
            image.truncate(10)
        monkeypatch.setattr(trainer_module, "build_model", fail)
        monkeypatch.setenv("TRITON_INTERPRET", "0")
        for config, message in (
            (tiny(tmp_path / "run", cub, global_batch=50), "do not fill"),
            (tiny(tmp_path / "run", cub, backend="triton"), "'triton' was asked for and cannot serve"),
            (tiny(tmp_path / "done", cub), "there is a run here"),
            (tiny(tmp_path / "done", cub, lr=1.0, resume="auto"), "lr was .* and is now 1.0"),
            (tiny(tmp_path / "run", str(broken)), "cannot read this image"),
        ):
            with pytest.raises(InputError, match=message):
                Trainer(config, CPU)
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        ("batch", "remark"), [(5, "4 optimiser steps only"), (21, "1 optimiser step only")]
    )
    def test_few_steps_per_epoch_are_remarked_on(self, tmp_path, cub, caplog, batch, remark):
        Trainer(tiny(tmp_path / "run", cub, global_batch=batch), CPU)
        assert remark in caplog.text

    def test_each_split_is_opened_once(self, tmp_path, cub, monkeypatch):
        opened = []
        open_really = source_module.open_dataset

        def open_counting(root, split, *arguments, **options):
            opened.append(split)
            return open_really(root, split, *arguments, **options)

        monkeypatch.setattr(source_module, "open_dataset", open_counting)
        train(tiny(tmp_path / "run", cub, pretraining={"epochs": 1}))
        assert sorted(opened) == ["test", "train", "val"]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"backend": "triton"}, "'triton' was asked for and cannot serve"),
            ({"calibration": {"blocks": 2}}, "blocks"),
            ({"attention_layers": [7]}, "attention_layers must be indices of the 2 layers"),
            ({"test_split": "final"}, "there is no split 'final'"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_everything_is_checked_before_pretraining(self, tmp_path, cub, monkeypatch, options, message):
        def fail(*arguments: object) -> None:
            raise AssertionError("pretraining has begun")

        monkeypatch.setenv("TRITON_INTERPRET", "0")
        monkeypatch.setattr(Trainer, "__init__", fail)
        with pytest.raises(InputError, match=message):
            train(tiny(tmp_path / "run", cub, pretraining={"epochs": 1}, **options))
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        "fields",
        [
            {"amp": "bf16", "clip_grad": 1.0},
            {"channels_last": True, "grad_checkpointing": True, "method": "tscam"},
            {"method": "cls", "preset": "official"},
            {"backend": "reference", "protocol": "fixed", "threshold": 0.2, "micro_batch": 2},
            {"rule": "deviation"},
            {"protocol": "published", "val_split": "test", "best_metric": "gt_known_published"},
        ],
        ids=lambda fields: " ".join(f"{key}={value}" for key, value in fields.items()),
    )
    def test_options(self, tmp_path, cub, fields):
        config = tiny(tmp_path / "run", cub, **fields)
        trainer = Trainer(config, CPU)
        before = trainer.model.head.weight.clone()
        trainer.fit()
        assert not torch.equal(before, trainer.model.head.weight)
        kept = trainer.folder.path / trainer.kept_model()
        assert kept.name == f"best_{config.best_metric}"
        if config.threshold is not None:
            assert load_model(kept).config.threshold == Threshold(config.threshold)
        if config.rule != "best":
            assert load_model(kept).config.threshold.rule == config.rule
        with (trainer.folder.path / "log.csv").open() as file:
            assert math.isfinite(float(next(csv.DictReader(file))["train_loss"]))

    @pytest.mark.parametrize(
        ("fields", "tolerance"),
        [
            ({"grad_checkpointing": True}, 1e-5),
            ({"channels_last": True}, 1e-5),
            ({"amp": "bf16"}, 0.05),
            # Compiling takes minutes of a CPU core.
            pytest.param({"compile": True}, 1e-3, marks=pytest.mark.slow),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_machine_options_train_alike(self, tmp_path, cub, fields, tolerance):
        """They change how the loss is computed, not which one; and the weights keep their names."""
        options = TINY["backbone_options"] | {"depth": 1}
        small = {"backbone_options": options, "calibration": {"num_blocks": 1}}
        losses, weights = [], []
        for name, extra in (("plain", {}), ("other", fields)):
            trainer = Trainer(tiny(tmp_path / name, cub, **small, **extra), CPU)
            trainer.fit()
            with (tmp_path / name / "steps.csv").open() as file:
                losses.append([float(row["loss"]) for row in csv.DictReader(file)])
            weights.append(load_file(tmp_path / name / "last" / "model.safetensors"))
        assert len(losses[0]) == 4
        assert losses[1] == pytest.approx(losses[0], rel=tolerance)
        if fields in ({"compile": True}, {"amp": "bf16"}):
            assert losses[1] != losses[0]  # or the option did nothing
        assert weights[1].keys() == weights[0].keys()
        load_model(tmp_path / "other" / "last")

    def test_progress_bar(self, tmp_path, cub, monkeypatch):
        """A terminal shows loss, images per second and the time that is left."""
        pty, fcntl, termios = (pytest.importorskip(name) for name in ("pty", "fcntl", "termios"))
        screen, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        # However fast the steps are, each is shown.
        monkeypatch.setattr("scm_fast.training.trainer.tqdm", functools.partial(tqdm, mininterval=0))
        trainer = Trainer(tiny(tmp_path / "run", cub), CPU)
        with os.fdopen(terminal, "w") as stderr:
            monkeypatch.setattr(sys, "stderr", stderr)
            trainer.fit()
            monkeypatch.undo()
            shown = os.read(screen, 1 << 16).decode()
        os.close(screen)
        assert re.search(r"epoch 1/1: .* 5/20 .* images/s, loss=\d\.\d+, run_left=0:\d\d:\d\d", shown), shown

    def test_folder_without_boxes(self, tmp_path, capsys):
        """Classification chooses the model, the images the threshold, and that is said."""
        config = tiny(tmp_path / "run", str(write_folder(tmp_path / "pets")))
        trainer = Trainer(config, CPU)
        trainer.fit()
        assert trainer.kept_model() == "best_top1_cls"
        result = evaluate_kept_model(config, trainer.source, trainer.folder.path / "best_top1_cls", CPU, None)
        assert result.protocol == "unboxed"
        assert set(result.metrics) == {"top1_cls"}
        assert load_model(trainer.folder.path / "last").config.threshold == DEFAULT_THRESHOLD
        shown = capsys.readouterr().out
        assert "Top-1 classification" in shown
        assert re.search(r"epoch 1/1: .*, threshold between:0\.3 without boxes, ", shown), shown
        assert "protocol unboxed; threshold between:0.3, the default: " in shown


def test_machines_that_see_different_run_folders(tmp_path, cub, monkeypatch):
    """The other process resumed after step 6, this one found no checkpoint."""
    monkeypatch.setattr(distributed, "gather", lambda value: [value, 6] if type(value) is int else [value])
    with pytest.raises(InputError, match=r"different steps there \(0, 6\).*that all machines share"):
        Trainer(tiny(tmp_path / "run", cub), CPU)
