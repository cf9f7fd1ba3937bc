"""`scm-fast demo`, quickly and on a small part of the built-in set: nothing is done twice, and nothing is lost."""

import itertools
import json
import os
import re
import signal
from dataclasses import replace

import pytest
from PIL import Image

from scm_fast.cli import main
from scm_fast.data.layouts import synthetic
from scm_fast.models import LocalizationModel
from scm_fast.training.trainer import Trainer

COUNTS = {"train": 36, "val": 24, "test": 30}
PRETRAINING_COUNTS = {"train": 36, "val": 18, "test": 18}


@pytest.fixture
def watched(monkeypatch):
    """Count what the demo does: splits drawn, methods trained step by step, images evaluated."""
    seen = {"drawn": [], "steps": [], "evaluated": 0}
    draw, step, forward = synthetic.draw_split, Trainer._optimizer_step, LocalizationModel.forward

    def counted_draw(which, name):
        seen["drawn"].append((which, name))
        return draw(which, name)

    def counted_step(self, *arguments):
        seen["steps"].append(self.config.method)
        return step(self, *arguments)

    def counted_forward(self, images):
        seen["evaluated"] += 0 if self.training else len(images)
        return forward(self, images)

    for which, counts in (("synthetic", COUNTS), ("synthetic-pretraining", PRETRAINING_COUNTS)):
        monkeypatch.setitem(synthetic.SETS, which, replace(synthetic.SETS[which], counts=counts))
    monkeypatch.setattr(synthetic, "draw_split", counted_draw)
    monkeypatch.setattr(Trainer, "_optimizer_step", counted_step)
    monkeypatch.setattr(LocalizationModel, "forward", counted_forward)
    return seen


def demo(out):
    return main(["demo", "--quick", "--device", "cpu", "--out", str(out)])


def test_everything_is_done_once(tmp_path, watched, capsys):
    assert demo(tmp_path / "demo") == 0
    said = capsys.readouterr().out
    assert sorted(watched["drawn"]) == sorted(itertools.product(synthetic.SETS, synthetic.SPLITS))
    assert watched["steps"] == ["cls", "tscam", "scm"], "an epoch of one step each, from one pretraining"
    assert watched["evaluated"] == 3 * (COUNTS["val"] + COUNTS["test"]) + PRETRAINING_COUNTS["val"]
    assert re.findall(r"^(\d)/6 ", said, re.M) == list("0123456")
    assert len(re.findall(r"about \d+ min \d+ s left", said)) == 3
    rows = re.findall(r"^(attention alone|TS-CAM|SCM|centred box) +([\d.]+)", said, re.M)
    assert [title for title, _ in rows] == ["attention alone", "TS-CAM", "SCM", "centred box"]
    for (_, shown), run in zip(rows[1:], ("tscam", "scm"), strict=False):
        metrics = json.loads((tmp_path / "demo" / run / "evaluation/metrics.json").read_text())
        assert float(shown) == pytest.approx(metrics["metrics"]["gt_known"]["value"], abs=0.06)
        assert not (tmp_path / "demo" / run / "evaluation/report.html").exists(), "there is one report"
    # A network that knows other classes has no figures of these.
    told = json.loads((tmp_path / "demo/demo.json").read_text())["rows"]
    assert list(told["attention alone"]) == ["gt_known"]
    assert list(told["SCM"]) == ["top1_cls", "top1_loc", "gt_known"]
    assert re.search(r"^attention alone +[\d.]+$", said, re.M)
    with Image.open(tmp_path / "demo/maps.png") as picture:
        assert picture.size[0] > 6 * 168
    report = (tmp_path / "demo/report.html").read_text()
    for title in ("attention alone", "TS-CAM", "SCM"):
        assert f'<th class="n">{title}</th>' in report
    # Again: nothing is computed, and the same is said.
    watched["drawn"].clear()
    watched["steps"].clear()
    assert demo(tmp_path / "demo") == 0
    assert watched["drawn"] == watched["steps"] == []
    again = capsys.readouterr().out
    assert again.split("\n\n", 1)[1] == said.split("\n\n", 1)[1]


@pytest.mark.parametrize("method", ["cls", "scm"])
def test_a_stopped_demo_goes_on(tmp_path, watched, monkeypatch, capsys, method):
    step = Trainer._optimizer_step

    def stopping(self, *arguments):
        if self.config.method == method:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_optimizer_step", stopping)
        assert demo(tmp_path) == 130
    assert "stopped; the same command goes on where it was" in capsys.readouterr().err
    assert demo(tmp_path) == 0
    assert watched["steps"] == ["cls", "tscam", "scm"], "no step is done twice"


def test_ctrl_c_while_it_evaluates(tmp_path, watched, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr("scm_fast.demo.write_report", lambda *arguments: signal.raise_signal(signal.SIGINT))
        assert demo(tmp_path) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert not (tmp_path / "demo.json").exists()
    assert demo(tmp_path) == 0
    assert watched["steps"] == ["cls", "tscam", "scm"]
    assert (tmp_path / "report.html").is_file()
