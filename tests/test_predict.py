"""`scm-fast predict` with many images: what is done is kept, the memory does not grow, and pictures stay small."""

import csv
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
import weakref

import numpy as np
import pytest
import torch
from PIL import Image

from scm_fast import Localizer, create_model, lock, save_model
from scm_fast.cli import main
from scm_fast.evaluation.boxes import ScoredBox
from scm_fast.formats import FORMATS
from scm_fast.formats.tables import harmless
from scm_fast.journal import FILE
from scm_fast.localizer import ClassScore, Prediction
from scm_fast.models import LocalizationModel
from scm_fast.models.checkpoint import save_threshold
from scm_fast.overlay import blend, draw_overlay, save_overlay
from scm_fast.threshold import Threshold

COUNT = 12
SCM_FAST = [sys.executable, "-m", "scm_fast.cli"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    small = {"depth": 1, "embed_dim": 48, "num_heads": 3}
    model = create_model("deit_tiny_patch16_224", 3, image_size=32, backbone_options=small)
    return save_model(model, tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for number in range(COUNT):
        pixels = random.integers(0, 256, (120, 160, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return folder


def predict(photos, checkpoint, out, *options):
    return main(
        [str(a) for a in ("predict", photos, "--checkpoint", checkpoint, "--out", out, "--batch-size", 2)]
        + list(options)
    )


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def stopping(monkeypatch):
    """stopping(count, error) makes the network raise it after so many images; gives what it has seen."""
    forward, seen = LocalizationModel.forward, []

    def stop_after(count, error=KeyboardInterrupt):
        seen.clear()

        def counted(self, images):
            if sum(seen) >= count:
                raise error
            seen.append(len(images))
            return forward(self, images)

        monkeypatch.setattr(LocalizationModel, "forward", counted)
        return seen

    return stop_after


@pytest.mark.parametrize("form", FORMATS)
def test_a_stopped_command_goes_on_to_the_same_files(checkpoint, photos, tmp_path, stopping, capsys, form):
    options = ("--format", form, "--overlay", "--max-boxes", "3", "--threshold", "0.4")
    assert predict(photos, checkpoint, tmp_path / "whole", *options) == 0
    stopping(6)
    assert predict(photos, checkpoint, tmp_path / "out", *options) == 130
    assert "stopped; 6 of 12 images are done and kept" in capsys.readouterr().err
    assert len((tmp_path / "out" / FILE).read_text().splitlines()) == 1 + 6
    seen = stopping(100)
    assert predict(photos, checkpoint, tmp_path / "out", *options) == 0
    assert sum(seen) == COUNT - 6
    assert "6 of 12 images are done already" in capsys.readouterr().err
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_threshold_that_images_chose_stays(checkpoint, photos, tmp_path, stopping, capsys):
    """Also if the images that are left would choose another."""
    stopping(COUNT + 4)
    assert predict(photos, checkpoint, tmp_path) == 130
    notes = json.loads((tmp_path / FILE).read_text().splitlines()[0])["notes"]
    capsys.readouterr()
    seen = stopping(100)
    assert predict(photos, checkpoint, tmp_path) == 0
    assert sum(seen) == COUNT - 4
    assert notes["chosen_by"] in capsys.readouterr().out


def test_whose_threshold_can_be_said(checkpoint, photos, tmp_path, capsys):
    assert predict(photos, checkpoint, tmp_path / "out", "--threshold", "stored") == 2
    assert f"--threshold stored: {checkpoint} has none; scm-fast evaluate --save-" in capsys.readouterr().err
    own = shutil.copytree(checkpoint, tmp_path / "own")
    save_threshold(own, Threshold(0.4))
    said = {}
    for given in ((), ("--threshold", "stored"), ("--threshold", "auto")):
        assert predict(photos, own, tmp_path / "out", *given) == 0
        said[given[-1:]] = capsys.readouterr().out
    assert "threshold global:0.4 (the checkpoint's)\n" in said[()]
    assert said["stored",] == said[()]
    assert f"(chosen without boxes, by the tokens of {COUNT} images); --threshold between:" in said["auto",]
    chosen = said["auto",].split("--threshold ")[1].split(" is this one for other images too")[0]
    assert predict(photos / "00.png", own, tmp_path / "again", "--threshold", chosen) == 0
    assert f"threshold {chosen} (given)\n" in capsys.readouterr().out


def test_scores_differ_between_photos(checkpoint, photos, tmp_path):
    assert predict(photos, checkpoint, tmp_path, "--threshold", "0.4") == 0
    entries = json.loads((tmp_path / "predictions.json").read_text())
    scores = [entry["boxes"][0]["score"] for entry in entries]
    assert len(set(scores)) == COUNT
    assert all(0 < score < 1 for score in scores)


def test_other_options_do_not_go_on(checkpoint, photos, tmp_path, stopping, capsys):
    stopping(4)
    assert predict(photos, checkpoint, tmp_path, "--threshold", "0.3") == 130
    stopping(100)
    assert predict(photos, checkpoint, tmp_path, "--threshold", "0.4") == 2
    assert "threshold was 0.3 and is now 0.4" in capsys.readouterr().err
    assert len((tmp_path / FILE).read_text().splitlines()) == 1 + 4
    # Where the results go and how they are computed is no other command.
    assert predict(photos, checkpoint, tmp_path, "--threshold", "0.3", "--format", "csv") == 0
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 1 + COUNT


def test_other_images_are_another_command(checkpoint, photos, tmp_path, stopping, capsys):
    """Theirs would be added to those that are done."""
    other = tmp_path / "other"
    other.mkdir()
    for number in range(3):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(other / f"{number}.png")
    stopping(4)
    assert predict(photos, checkpoint, tmp_path / "out", "--threshold", "0.3") == 130
    stopping(100)
    assert predict(other, checkpoint, tmp_path / "out", "--threshold", "0.3") == 2
    assert f"images was {photos} and is now {other}" in capsys.readouterr().err
    assert predict(photos, checkpoint, tmp_path / "out", "--threshold", "0.3") == 0
    assert len(json.loads((tmp_path / "out/predictions.json").read_text())) == COUNT


def test_images_that_were_removed_meanwhile_are_in_no_result(checkpoint, photos, tmp_path, stopping, capsys):
    shutil.copytree(photos, tmp_path / "photos")
    stopping(4)
    assert predict(tmp_path / "photos", checkpoint, tmp_path / "out", "--threshold", "0.3") == 130
    (tmp_path / "photos" / "00.png").unlink()
    stopping(100)
    assert predict(tmp_path / "photos", checkpoint, tmp_path / "out", "--threshold", "0.3") == 0
    assert "3 of 11 images are done already" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "out/predictions.json").read_text())) == COUNT - 1


def test_a_second_command_at_the_same_time_is_refused(checkpoint, photos, tmp_path, capsys):
    out = tmp_path / "out"
    code = "import sys; from pathlib import Path; from scm_fast.lock import FolderLock\n"
    code += (
        "with FolderLock(Path(sys.argv[1]), work='predicting'): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"held\n"
        assert predict(photos, checkpoint, out) == 2
        assert f"{out}: process {first.pid} on " in (said := capsys.readouterr().err)
        assert "is predicting here; wait for it, or give --out another folder" in said
        assert os.listdir(out) == [lock.FILE]
        first.communicate()
    assert predict(photos, checkpoint, out) == 0
    assert os.listdir(out) == ["predictions.json"]


@pytest.mark.parametrize("out", ["found", "."], ids=["below", "the same folder"])
def test_its_own_pictures_are_no_images(checkpoint, photos, tmp_path, capsys, out):
    folder = shutil.copytree(photos, tmp_path / "photos")
    for _ in range(2):
        assert predict(folder, checkpoint, folder / out, "--overlay") == 0
        assert len(json.loads((folder / out / "predictions.json").read_text())) == COUNT
    assert "results of scm-fast predict" in capsys.readouterr().err
    assert predict(folder, checkpoint, tmp_path / "elsewhere") == 0
    assert len(json.loads((tmp_path / "elsewhere" / "predictions.json").read_text())) == COUNT


def test_what_is_left_out_is_said_and_written(checkpoint, photos, tmp_path, capsys):
    folder = shutil.copytree(photos, tmp_path / "photos")
    (folder / "clip.mov").touch()
    (folder / "notes.txt").touch()
    (folder / "broken.jpg").write_bytes(b"no image")
    os.mkfifo(folder / "pipe.png")
    assert predict(folder, checkpoint, tmp_path / "out") == 1
    printed = capsys.readouterr()
    assert "left out 2 files that are no image: 1 .mov, 1 .txt" in printed.err
    left_out = tmp_path / "out" / "left_out.csv"
    assert f"1 could not be read, 3 left out ({left_out})" in printed.out
    with left_out.open() as file:
        reasons = {os.path.basename(row["file"]): row["reason"] for row in csv.DictReader(file)}
    assert reasons["clip.mov"] == reasons["notes.txt"] == "no image file, by its suffix"
    assert reasons["pipe.png"] == "not a regular file"
    assert reasons["broken.jpg"].startswith("cannot read this image")
    for name in ("clip.mov", "notes.txt", "broken.jpg", "pipe.png"):
        (folder / name).unlink()
    assert predict(folder, checkpoint, tmp_path / "out") == 0
    assert not left_out.exists()


def test_a_pipe_is_no_image(checkpoint, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.png")
    assert predict(tmp_path / "pipe.png", checkpoint, tmp_path / "out") == 2
    assert "pipe.png: cannot read this image (not a regular file)" in capsys.readouterr().err


@pytest.mark.parametrize("form", FORMATS)
def test_a_name_that_is_not_utf8(checkpoint, photos, tmp_path, form, capsys):
    folder = tmp_path / "photos"
    folder.mkdir()
    shutil.copy(photos / "00.png", os.path.join(os.fsencode(folder), b"caf\xe9.png"))
    assert predict(folder, checkpoint, tmp_path / "out", "--format", form, "--overlay") == 0
    assert len(os.listdir(tmp_path / "out/overlays")) == 1
    if form == "csv":
        assert r"caf\udce9.png" in (tmp_path / "out/predictions.csv").read_text()


def test_a_line_that_was_cut_short_is_done_again(checkpoint, photos, tmp_path, stopping):
    stopping(6)
    assert predict(photos, checkpoint, tmp_path, "--threshold", "0.3") == 130
    journal = tmp_path / FILE
    journal.write_bytes(journal.read_bytes()[:-10])
    seen = stopping(100)
    assert predict(photos, checkpoint, tmp_path, "--threshold", "0.3") == 0
    assert sum(seen) == COUNT - 5
    assert len(json.loads((tmp_path / "predictions.json").read_text())) == COUNT


def test_ctrl_c_in_a_real_process(checkpoint, photos, tmp_path):
    (tmp_path / "many").mkdir()
    for number in range(500):
        os.link(photos / "00.png", tmp_path / "many" / f"{number}.png")
    command = [*SCM_FAST, "predict", str(tmp_path / "many"), "--checkpoint", str(checkpoint)]
    command += ["--out", str(tmp_path / "out"), "--batch-size", "1", "--threshold", "0.3", "--overlay"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "out" / FILE
    for _ in range(6000):
        if journal.is_file() and len(journal.read_text().splitlines()) >= 1 + 3:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    done = len(journal.read_text().splitlines()) - 1
    assert f"stopped; {done} of 500 images are done and kept" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(("overlay", "limit"), [(False, 1500), (True, 3000)], ids=["journal", "overlay"])
def test_a_full_disk_keeps_what_is_done(checkpoint, photos, tmp_path, overlay, limit):
    options = ["--threshold", "0.3", "--batch-size", "2"] + ["--overlay"] * overlay
    code = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); "
        "from scm_fast.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["predict", str(photos), "--checkpoint", str(checkpoint), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, *options], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = (tmp_path / "out" / FILE).read_text().splitlines()
    assert f"File too large; {len(lines) - 1} of 12 images are done and kept" in done.stderr
    assert all(json.loads(line) for line in lines)
    assert len(list((tmp_path / "out").glob("overlays/*"))) == 0, "no half of a picture"
    assert main([*arguments, *options]) == 0
    assert len(json.loads((tmp_path / "out/predictions.json").read_text())) == COUNT


def test_no_map_outlives_its_batch(checkpoint, photos, tmp_path, monkeypatch):
    """0.2 MB per image: those of 50,000 images are 10 GB."""
    alive, most = [], 0
    stream = Localizer.stream

    def watched(self, images):
        nonlocal most
        for prediction in stream(self, images):
            alive.append(weakref.ref(prediction.map))
            gc.collect()
            most = max(most, sum(reference() is not None for reference in alive))
            yield prediction

    monkeypatch.setattr(Localizer, "stream", watched)
    assert predict(photos, checkpoint, tmp_path, "--overlay") == 0
    assert len(alive) == COUNT
    assert most <= 2


def test_formulas_are_text_in_a_spreadsheet(tmp_path, checkpoint, monkeypatch):
    name = "=HYPERLINK(1).png"
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (40, 40)).save(name)
    assert predict(name, checkpoint, "out", "--format", "csv") == 0
    with open("out/predictions.csv") as file:
        (row,) = csv.DictReader(file)
    assert row["image"] == f"'{name}"
    assert [harmless(cell) for cell in ("+a", "@b", "-c", "\tx", "-1.50", "a=b", -2, None)] == [
        *("'+a", "'@b", "'-c", "'\tx", "-1.50", "a=b", -2, None)
    ]


def prediction_of(name, size, *boxes, label="a"):
    scores = np.linspace(0, 1, 224 * 224, dtype=np.float32).reshape(224, 224)
    return Prediction(
        str(name), size, [ClassScore(0, label, 1.0)], [ScoredBox(box, 1.0) for box in boxes], scores
    )


def test_overlays_of_large_images_are_scaled_down(tmp_path):
    Image.new("RGB", (3000, 1500), (200, 10, 10)).save(tmp_path / "large.jpg")
    prediction = prediction_of(tmp_path / "large.jpg", (3000, 1500), (600, 300, 2400, 1200))
    for options, size in (((), (1600, 800)), ((300,), (300, 150)), ((9000,), (3000, 1500))):
        save_overlay(tmp_path / "out.jpg", prediction, *options)
        with Image.open(tmp_path / "out.jpg") as overlay:
            assert overlay.size == size
            left, top = size[0] // 5, size[1] // 2  # a point of the frame's left side
            assert min(overlay.getpixel((left, top))) > 200


def test_blending_takes_eight_bits():
    """The heat, its map and the result: no more than four bytes beside each of the picture's three."""
    picture = np.zeros((1000, 1600, 3), np.uint8)
    tracemalloc.start()
    blend(picture, np.linspace(0, 1, 224 * 224).reshape(224, 224), 0.45)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * picture.nbytes


@pytest.mark.parametrize("ground", [0, 128, 255])
def test_a_frame_is_seen_on_every_ground(ground):
    prediction = prediction_of("a", (400, 300), (100, 80, 300, 220))
    picture = draw_overlay(Image.new("RGB", (400, 300), (ground,) * 3), prediction, opacity=0.0)
    across = picture[150, 90:110, 0].astype(int)
    assert across.min() < 30
    assert across.max() > 225


@pytest.mark.parametrize(
    "box",
    [
        *((100, 80, 300, 220), (0, 0, 400, 300), (0, 0, 60, 300), (0, 0, 400, 60), (340, 240, 400, 300)),
        *((0, 0, 30, 30), (0, 240, 400, 300)),
    ],
    ids=str,
)
@pytest.mark.parametrize("label", ["a", "a rather long name"])
def test_a_label_does_not_cover_the_frame(box, label):
    image = Image.new("RGB", (400, 300), (128, 128, 128))
    plain = draw_overlay(image, prediction_of("a", (400, 300), box, label=""), opacity=0.0)
    x0, y0, x1, y1 = (min(max(v, 1), limit) for v, limit in zip(box, (400, 300, 398, 298), strict=True))
    named = draw_overlay(image, prediction_of("a", (400, 300), box, label=label), opacity=0.0)
    for line in (np.s_[y0, x0:x1], np.s_[y1, x0:x1], np.s_[y0:y1, x0], np.s_[y0:y1, x1]):
        assert (named[line] == 255).all(), "the frame is white all along"
    # The label is there: dark letters beyond those of the score alone.
    assert (named < 60).all(2).sum() > (plain < 60).all(2).sum()
