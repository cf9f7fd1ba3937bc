"""Progress where there is no terminal: lines in the log, not too many, with what a person wants to know."""

import io
import re
import subprocess
import sys
import time

import pytest
import torch
from data_folders import write_folder

from scm_fast import create_model, progress, save_model
from scm_fast.progress import tqdm


@pytest.fixture
def quick(monkeypatch):
    """Lines come as soon as something is done."""
    monkeypatch.setattr(progress, "FIRST", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.0)


def test_lines_have_the_count_the_speed_and_the_time_left(quick):
    log = io.StringIO()
    with tqdm(total=200, initial=100, desc="epoch 1/3", unit=" images", disable=None, file=log) as bar:
        time.sleep(0.05)
        bar.set_postfix(loss="0.5", refresh=False)
        bar.update(50)
    assert re.fullmatch(
        r"epoch 1/3: 150 of 200 images, \d+ images/s, 0:00:00 left, loss=0.5\n", log.getvalue()
    )


def test_slow_steps_are_told_in_seconds(quick):
    log = io.StringIO()
    bar = tqdm(total=3, unit="image", disable=None, file=log)
    bar._begin -= 20
    bar.update()
    assert log.getvalue() == "1 of 3 image, 20 s per image, 0:00:40 left\n"


def test_lines_are_few(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log = io.StringIO()
    for _ in tqdm(range(600), disable=None, file=log):
        now[0] += 1
    assert [line.split()[0] for line in log.getvalue().splitlines()] == [
        str(count) for count in range(20, 601, 60)
    ]


def test_what_is_disabled_says_nothing(quick):
    log = io.StringIO()
    assert list(tqdm(range(3), disable=True, file=log)) == [0, 1, 2]
    assert log.getvalue() == ""


COMMAND = """
import sys
from scm_fast import progress
progress.FIRST = progress.EVERY = 0.0
from scm_fast.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_commands_write_lines_into_a_log(tmp_path):
    data = write_folder(tmp_path / "set")
    tiny = {"patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 1}
    torch.manual_seed(0)
    model = create_model("vit_tiny_patch16_224", 2, image_size=16, backbone_options=tiny)
    save_model(model, tmp_path / "model")
    network = ("--backbone", "vit_tiny_patch16_224", "--backbone-options", str(tiny), "--image-size", "16")
    training = ("--pretrained", "false", "--epochs", "1", "--warmup-epochs", "0", "--workers", "0")
    checkpoint = ("--checkpoint", tmp_path / "model")
    for arguments, lines in (
        (
            ("train", "--data", data, "--out", tmp_path / "run", "--device", "cpu", *network, *training),
            (
                r"^epoch 1/1: 8 of 8 images, .* images/s, 0:00:00 left, loss=",
                r"^val: 2 of 2 images",
                r"^test: 4",
            ),
        ),
        (
            ("evaluate", *checkpoint, "--data", data, "--workers", "0"),
            (r"^val: 2 of 2 images", r"^test: 4 of 4 images"),
        ),
        (("predict", data, *checkpoint, "--out", tmp_path / "found"), (r"^20 of 20 images",)),
    ):
        command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
        with (tmp_path / "log").open("w") as log:
            assert subprocess.run(command, stdout=log, stderr=log).returncode == 0, (
                tmp_path / "log"
            ).read_text()
        shown = (tmp_path / "log").read_text()
        assert not set(shown) & set("\r\x1b")
        for line in lines:
            assert re.search(line, shown, re.M), (line, shown)
