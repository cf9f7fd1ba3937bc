"""Steps whose figures are read one step late, as on a GPU: nothing else may differ; and the one checkpoint."""

import csv
import warnings
from pathlib import Path

import pytest
import torch
from data_folders import write_cub
from torch.utils._python_dispatch import TorchDispatchMode
from training_runs import CONFIG, rows, weights

from scm_fast.models.methods import method_names
from scm_fast.training import Diverged, Interrupted, Trainer, make_config
from scm_fast.training.optimization import load_optimizer, step_unless
from scm_fast.training.run_folder import RunFolder
from scm_fast.training.step_reports import StepReport, StepReports

CPU = torch.device("cpu")
DEEP = {"backbone_options": {**CONFIG["backbone_options"], "depth": 3}}  # as many blocks as SAT masks


@pytest.fixture(scope="module")
def cub(tmp_path_factory) -> str:
    return str(write_cub(tmp_path_factory.mktemp("data") / "CUB"))


@pytest.fixture
def make(cub, tmp_path):
    """make(name, delay, options...) sets up a run whose reports are read so many steps late."""

    def trainer(name: str, delay: int = 0, **options) -> Trainer:
        config = make_config({**CONFIG, "data": cub, "out": str(tmp_path / name), **options}, "test")
        made = Trainer(config, CPU)
        made.reports.delay = delay
        return made

    return trainer


@pytest.mark.parametrize("options", [{}, {"clip_grad": 0.5, "micro_batch": 2, "average": 0.9}], ids=str)
def test_late_reports_change_nothing(make, tmp_path, options):
    for name, delay in (("at once", 0), ("late", 1)):
        make(name, delay, **options).fit()
    for log in ("steps", "log"):
        assert rows(tmp_path / "late", log) == rows(tmp_path / "at once", log)
    for name, value in weights(tmp_path / "at once").items():
        assert torch.equal(weights(tmp_path / "late")[name], value), name


def test_a_checkpoint_knows_every_step(make, tmp_path):
    """Also those that were not read yet."""
    make("whole").fit()
    stopped = make("stopped", 1)
    step = Trainer._optimizer_step

    def signalled(trainer, *arguments):
        step(trainer, *arguments)
        trainer.stop.number = 15 * (trainer.step == 5)

    stopped._optimizer_step = signalled.__get__(stopped)
    with pytest.raises(Interrupted, match="after step 6"):  # it was asked to after the fifth
        stopped.fit()
    assert len(rows(tmp_path / "stopped", "steps")) == 6
    make("stopped", 1, resume="auto").fit()
    for log in ("steps", "log"):
        assert rows(tmp_path / "stopped", log) == rows(tmp_path / "whole", log)


@pytest.mark.parametrize("delay", [0, 1], ids=["at once", "late"])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_bad_step_changes_nothing_and_is_named_with_its_images(make, monkeypatch, delay, what):
    trainer = make("run", delay)
    forward, step = Trainer._forward_backward, Trainer._optimizer_step
    seen = {}

    def broken(self, batch):
        found = forward(self, batch)
        if self.step == 2:
            seen["images"] = [Path(self.dataset.records[i].path).name for i in batch.indices.tolist()]
            if what == "loss":
                found["loss"] = found["loss"] * float("nan")
            else:
                self.model.head.bias.grad[0] = float("inf")
        return found

    def watched(self, *arguments):
        bad = self.step == 2
        if bad:
            seen["before"] = {name: value.clone() for name, value in self.model.state_dict().items()}
        try:
            step(self, *arguments)
        finally:
            if bad:
                seen["after"] = {name: value.clone() for name, value in self.model.state_dict().items()}

    monkeypatch.setattr(Trainer, "_forward_backward", broken)
    monkeypatch.setattr(Trainer, "_optimizer_step", watched)
    message = {"loss": "the loss is nan", "gradient": "the norm of the gradient is inf"}[what]
    with pytest.raises(Diverged, match=rf"{message} at step 2 \(epoch 0\)") as error:
        trainer.fit()
    assert len(seen["images"]) == 5
    assert all(name in str(error.value) for name in seen["images"])
    assert str(error.value).count(".jpg") == 5
    assert all(torch.equal(value, seen["after"][name]) for name, value in seen["before"].items())


def test_a_late_bad_step_is_found_before_a_checkpoint(make, monkeypatch):
    trainer = make("run", 1, checkpoint_steps=2)
    forward = Trainer._forward_backward

    def broken(self, batch):
        found = forward(self, batch)
        return {name: value * (float("nan") if self.step == 3 else 1) for name, value in found.items()}

    monkeypatch.setattr(Trainer, "_forward_backward", broken)
    with pytest.raises(Diverged, match=r"at step 3 .*\n.*checkpoint\.pt"):
        trainer.fit()
    assert trainer.folder.load_checkpoint()["step"] == 2


def test_an_overflow_in_the_first_step_warns_of_nothing(make):
    """fp16's scale is lowered, the step is left out, and the scheduler goes on."""
    trainer = make("run", amp="fp16", epochs=1)
    scaler = trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = trainer.model.head.weight.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.train_epoch()
    assert scaler.get_scale() == 2.0**36
    assert torch.equal(trainer.model.head.weight, before)
    assert trainer.step == 4
    with (trainer.folder.path / "steps.csv").open() as file:
        assert {row["gradient_norm"] for row in csv.DictReader(file)} & {"inf", "nan"}


class Waiting(TorchDispatchMode):
    """Notes operations that a GPU would be waited for: values that the CPU asks for or brings along."""

    NAMES = ("_local_scalar_dense", "lift_fresh", "nonzero", "bincount", "unique", "masked_select", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function.name().removeprefix("aten::").partition(".")[0]
        if name.startswith(self.NAMES):
            self.found.append(name)
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("method", method_names())
def test_forward_and_backward_wait_for_nothing(make, method):
    trainer = make("run", method=method, **DEEP)
    trainer.model.train()
    batches = iter(trainer.loader)
    trainer._forward_backward(next(batches))  # what is made once
    batch = next(batches)
    with Waiting() as waiting:
        trainer._forward_backward(batch)
    assert waiting.found == []


def test_reports_are_read_in_their_order():
    reports = StepReports(torch.device("cuda"))
    assert reports.delay == 1
    read = []
    for step in range(3):
        values = torch.tensor([float(step), 1.0])
        reports.add(StepReport(step, 0, 0.1, [], 0.0, ("loss", "norm"), values))
        read.append([report.step for report in reports.ready()])
    assert read == [[], [0], [1]]
    assert [report.figures() for report in reports.all()] == [{"loss": 2.0, "norm": 1.0}]
    assert list(reports.all()) == []


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_is_left_out(fused):
    """AdamW of all kinds leaves it out; the fused one is told by a tensor."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=fused)
    for bad, expected in ((False, 1), (True, 1), (False, 2)):
        before = weight.detach().clone()
        weight.grad = torch.full((3,), float("nan") if bad else 1.0)
        step_unless(torch.tensor(bad), optimizer)
        assert torch.equal(weight, before) == bad
        assert optimizer.state[weight]["step"] == expected


def test_an_optimizer_keeps_its_kind_when_it_is_loaded():
    """A run may go on on another device: how a step is computed is the device's."""
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    first, second = (torch.optim.AdamW([weight], lr=0.1, fused=fused) for fused in (True, False))
    first.step()
    load_optimizer(second, first.state_dict())
    assert second.param_groups[0]["fused"] is False
    assert second.state[weight]["step"] == 1


class TestEpochs:
    @pytest.fixture
    def saved(self, monkeypatch) -> list[int]:
        """Steps of the checkpoints that are written."""
        steps: list[int] = []
        save = RunFolder.save_checkpoint

        def noted(folder, state, model):
            steps.append(state["step"])
            save(folder, state, model)

        monkeypatch.setattr(RunFolder, "save_checkpoint", noted)
        return steps

    @pytest.mark.parametrize(("every", "steps"), [(500, [4, 8]), (3, [3, 4, 6, 8]), (4, [4, 8])])
    def test_an_epoch_has_one_checkpoint_at_its_end(self, make, saved, every, steps):
        make("run", checkpoint_steps=every).fit()
        assert saved == steps

    @pytest.mark.parametrize(
        ("every", "epochs", "validated"), [(1, 3, [0, 1, 2]), (2, 5, [1, 3, 4]), (9, 2, [1])]
    )
    def test_validation_of_some_epochs(self, make, tmp_path, saved, capsys, every, epochs, validated):
        trainer = make("run", validate_every=every, epochs=epochs, checkpoint_steps=500)
        trainer.fit()
        log = rows(tmp_path / "run", "log")
        assert [row["epoch"] for row in log] == [str(epoch) for epoch in range(epochs)]
        assert [epoch for epoch, row in enumerate(log) if row["gt_known"]] == validated
        assert all(row["train_loss"] and row["lam_1"] for row in log)
        assert saved == [4 * (epoch + 1) for epoch in range(epochs)]
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
        assert ["GT-Known" in line for line in lines] == [epoch in validated for epoch in range(epochs)]
        assert (trainer.folder.path / trainer.kept_model()).is_dir()

    def test_validation_does_not_change_the_training(self, make, tmp_path):
        for every in (1, 3):
            make(str(every), validate_every=every, epochs=3, drop_path_rate=0.3).fit()
        assert rows(tmp_path / "1", "steps") == rows(tmp_path / "3", "steps")

    @pytest.mark.parametrize("after", [3, 4, 6, 8], ids=lambda step: f"step {step}")
    def test_a_run_that_validates_some_epochs_is_resumed(self, make, tmp_path, after):
        options = {"validate_every": 2, "epochs": 3}
        make("whole", **options).fit()
        stopped = make("stopped", **options)
        step = Trainer._optimizer_step

        def signalled(trainer, *arguments):
            trainer.stop.number = 15 * (trainer.step == after - 1)
            step(trainer, *arguments)

        stopped._optimizer_step = signalled.__get__(stopped)
        with pytest.raises(Interrupted, match=f"after step {after}"):
            stopped.fit()
        make("stopped", resume="auto", **options).fit()
        for log in ("steps", "log"):
            assert rows(tmp_path / "stopped", log) == rows(tmp_path / "whole", log)
        for model in ("last", "best_gt_known"):
            for name, value in weights(tmp_path / "whole", model).items():
                assert torch.equal(weights(tmp_path / "stopped", model)[name], value), name


def test_a_run_without_a_validation_is_read(make, tmp_path):
    """Plot and compare read it: nothing is known of the first epochs but the training."""
    from scm_fast.runs.curves import accuracy_figure, threshold_figure
    from scm_fast.runs.reading import read_run

    pytest.importorskip("matplotlib")
    trainer = make("run", validate_every=2, epochs=4)
    trainer.train_epoch()
    trainer._end_epoch()
    run = read_run(Path(tmp_path / "run"))
    assert (run.best_epoch, run.kept_model.name) == (None, "last")
    accuracy_figure(run)
    trainer.fit()
    run = read_run(Path(tmp_path / "run"))
    assert run.best_epoch["epoch"] in (1, 3)
    for figure in (accuracy_figure(run), threshold_figure(run)):
        line = figure.axes[0].lines[0]
        assert list(line.get_xdata()) == [2, 4]
