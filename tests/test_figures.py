"""Figures of speed in README.md and docs/ are those of the stored table; a command makes the split of CUB."""

import re
from pathlib import Path

import readme_tables
from data_folders import write_cub
from make_development_split import make_split

from scm_fast.data import open_dataset

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COSTS = (ROOT / "docs" / "results.md").read_text().split("\n## Speed and memory\n")[1].split("\n## ")[0]


def test_every_row_of_the_speed_tables_is_of_the_stored_table():
    stored = readme_tables.newest_table()
    expected = [*readme_tables.module_table(stored), *readme_tables.parts_table(stored)]
    assert [line for line in COSTS.splitlines() if line.startswith("|")] == expected


def test_ratios_in_the_text_are_of_the_stored_table():
    """`6.8x`, `3.92 times`: everything outside the tables that says how many times."""
    stored = readme_tables.newest_table()
    ratios = [row.ratio_p50 for row in stored if row.ratio_p50]
    text = "\n".join(line for line in COSTS.splitlines() if not line.startswith("|"))
    text += README
    found = re.findall(r"([\d.,]+)(?:x\b| times \()", text)
    assert found
    for figure in found:
        digits = len(figure.split(".")[1]) if "." in figure else 0
        value = float(figure.replace(",", ""))
        assert any(round(ratio, digits) == value for ratio in ratios), f"{figure} is in no row"
    assert all(line in re.sub(r"\s+", " ", text) for line in readme_tables.growth_lines(stored))


def test_the_development_split_takes_each_sixth_training_image_of_a_class(tmp_path):
    cub = write_cub(tmp_path / "CUB", classes=2, per_class=18)  # 12 of them to train on
    assert make_split(cub, tmp_path / "development") == {"1": 20, "0": 4}
    training = [Path(record.path).name for record in open_dataset(cub, "trainval").records]
    test = [Path(record.path).name for record in open_dataset(tmp_path / "development", "test").records]
    assert test == training[5::6]
    assert len(open_dataset(tmp_path / "development", "trainval")) == 20


def test_another_division_tests_on_other_images(tmp_path):
    cub = write_cub(tmp_path / "CUB", classes=2, per_class=18)
    assert make_split(cub, tmp_path / "other", first=3) == {"1": 20, "0": 4}
    training = [Path(record.path).name for record in open_dataset(cub, "trainval").records]
    test = [Path(record.path).name for record in open_dataset(tmp_path / "other", "test").records]
    assert test == training[2::6]
