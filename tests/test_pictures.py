"""Pictures of docs/images: they are what the documented commands draw, from figures that the pages have."""

import csv
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
DATA = os.environ.get("SCM_FAST_DATA")


@pytest.mark.skipif(not DATA, reason="SCM_FAST_DATA is not set: the folder with weights")
def test_photos_are_drawn_by_the_documented_command(tmp_path, monkeypatch):
    """The command of docs/start.md; here its weights come from a file instead of timm's hub."""
    import photo_pictures

    from scm_fast.cli import main

    monkeypatch.chdir(ROOT)
    name = "deit_tiny_patch16_224"
    command = f"predict docs/photos --model {name} --out {tmp_path / 'found'} --overlay"
    assert (
        f"scm-fast {command.replace(str(tmp_path / 'found'), 'found')}" in Path("docs/start.md").read_text()
    )
    assert main([*command.split(), "--pretrained", f"{DATA}/weights/{name}.safetensors"]) == 0
    for drawn in photo_pictures.draw(tmp_path / "found", tmp_path / "pictures"):
        new, kept = (
            np.asarray(Image.open(path).convert("RGB"), float) for path in (drawn, IMAGES / drawn.name)
        )
        assert new.shape == kept.shape
        assert np.abs(new - kept).mean() < 2, drawn.name  # JPEGs of the same overlays


@pytest.fixture(scope="module")
def result_plots():
    pytest.importorskip("matplotlib")
    import result_plots

    return result_plots


def test_plots_are_drawn_for_light_and_dark_pages(result_plots, tmp_path):
    drawn = result_plots.draw(tmp_path)
    assert {path.name for path in drawn} == {
        f"{name}-{mode}.png" for name in ("gt_known", "tokens", "domains") for mode in ("light", "dark")
    }
    for path in drawn:
        new, kept = Image.open(path), Image.open(IMAGES / path.name)
        assert new.size == kept.size, f"{path.name}: draw it again with bench/result_plots.py"
        assert new.width >= 900
        difference = np.asarray(new.convert("RGBA"), float) - np.asarray(kept.convert("RGBA"), float)
        assert np.abs(difference).mean() < 0.5, f"{path.name}: draw it again with bench/result_plots.py"


def test_a_method_has_one_colour_in_a_plot(result_plots):
    for mode in result_plots.MODES.values():
        assert len(set(mode.colours)) == len(mode.colours) >= len(result_plots.METHODS)


def test_the_plotted_times_are_those_of_the_note():
    note = (ROOT / "lab" / "2026-11-18-time-to-accuracy.md").read_text()
    table = re.search(r"(?:^\|.*\n)+", note, re.M)[0]
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    with open(ROOT / "bench" / "figures" / "time_to_accuracy.csv", newline="") as file:
        plotted = list(csv.DictReader(file))
    assert len(plotted) == len(shown) - 1  # without the other birds
    names = ("core_minutes", "top1_cls", "top1_loc", "gt_known", "max_box_acc_v2")
    for row, cells in zip(plotted, shown, strict=False):
        assert cells[4:] == [row[name] for name in names]
        assert cells[2].split()[0] == row["epochs"]
        assert cells[3].replace(",", "") == row["images"]
