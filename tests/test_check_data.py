"""`scm-fast check-data` as a user runs it."""

import json
import subprocess
import sys

import pytest
from data_folders import truncate, write_coco, write_cub, write_folder, write_ilsvrc, write_wsol

from scm_fast.cli import main


@pytest.fixture
def check_data(capsys):
    """Runs the command in this process; gives (exit status, what it printed, what it said on stderr)."""

    def run(*arguments):
        status = main(["check-data", *map(str, arguments)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_as_a_process(tmp_path):
    root = write_cub(tmp_path)
    truncate(root / "images" / "001.Bird_0" / "Bird_0_0002.jpg")
    command = [sys.executable, "-m", "scm_fast.cli", "check-data", str(root)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert result.stderr == ""
    assert "1 problem:\n" in result.stdout
    assert "Bird_0_0002.jpg: cannot read this image" in result.stdout


def test_good_folder(tmp_path, check_data):
    status, out, err = check_data(write_cub(tmp_path))
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0] == f"{tmp_path}: cub layout"
    assert [line.split() for line in lines[1:5]] == [
        ["split", "images", "classes", "boxes", "masks", "no", "box", "width", "height"],
        ["train", "21", "3", "21", "0", "0", "60", "40"],
        ["val", "3", "3", "3", "0", "0", "60", "40"],
        ["test", "12", "3", "12", "0", "0", "60", "40"],
    ]
    assert lines[-1] == "no problem found"


def test_every_problem_of_every_split_is_listed_once(tmp_path, check_data):
    root = write_cub(tmp_path)
    truncate(root / "images" / "001.Bird_0" / "Bird_0_0002.jpg")  # test
    truncate(root / "images" / "001.Bird_0" / "Bird_0_0000.jpg")  # train
    (root / "images" / "002.Bird_1" / "Bird_1_0001.jpg").unlink()  # train
    text = (root / "train_test_split.txt").read_text()
    (root / "train_test_split.txt").write_text(text + "this is no line of three\n")
    status, out, err = check_data(root)
    assert status == 1
    assert err == ""
    assert "4 problems:" in out
    problems = out.split("4 problems:\n")[1].splitlines()
    assert len(problems) == 4
    for name, message in (
        ("Bird_0_0002.jpg", "cannot read this image"),
        ("Bird_0_0000.jpg", "cannot read this image"),
        ("Bird_1_0001.jpg", "no such image file"),
        ("train_test_split.txt:37", "is not of the form 'id is_train'"),
    ):
        assert any(name in problem and message in problem for problem in problems)


def test_quick_reads_headers_alone(tmp_path, check_data):
    root = write_cub(tmp_path)
    truncate(root / "images" / "001.Bird_0" / "Bird_0_0002.jpg")
    assert check_data(root, "--quick")[0] == 0
    assert check_data(root)[0] == 1


def test_options(tmp_path, check_data):
    root = write_folder(tmp_path / "set", ("train", "test"))
    names = [f"test/{c}/{c}_{i}.png" for c in ("cat", "dog") for i in range(10)]
    boxes = write_coco(tmp_path / "boxes.json", names)
    status, out, _ = check_data(root, "--split", "test", "--boxes", boxes, "--layout", "folder")
    assert status == 0, out
    assert ["test", "20", "2", "20", "0", "0", "60", "40"] in [line.split() for line in out.splitlines()]
    assert f"boxes of test: {boxes}" in out
    assert "train " not in out


def test_masks_are_counted(tmp_path, check_data):
    status, out, _ = check_data(write_wsol(tmp_path, masks=True))
    assert status == 0, out
    assert ["test", "4", "2", "0", "8", "0", "60", "40"] in [line.split() for line in out.splitlines()]


def test_ilsvrc_without_val_folder_is_one_problem_among_others(tmp_path, check_data):
    root = write_ilsvrc(tmp_path, None)
    for path in (root / "val").iterdir():
        path.unlink()
    (root / "val").rmdir()
    status, out, _ = check_data(root)
    assert status == 1
    assert "val: no such folder" in out
    assert ["train", "27", "3", "0", "0", "27", "60", "40"] in [line.split() for line in out.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing_here",), "nothing_here: no such folder"),
        ((".",), "no known layout here"),
        (
            (".", "--layout", "cub"),
            "this is no cub layout. Expected images.txt and image_class_labels.txt, here or in CUB_200_2011/; "
            "the folder has: notes.md",
        ),
    ],
)
def test_what_cannot_be_checked(tmp_path, monkeypatch, arguments, message, check_data):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("no images")
    status, _, err = check_data(*arguments)
    assert status == 2
    assert message in err


def test_json(tmp_path, check_data):
    root = write_cub(tmp_path)
    (root / "images" / "002.Bird_1" / "Bird_1_0001.jpg").unlink()
    status, out, err = check_data(root, "--json")
    assert (status, err) == (1, "")
    found = json.loads(out)
    assert found["layout"] == "cub"
    train = next(split for split in found["splits"] if split["split"] == "train")
    assert (train["images"], train["classes"], train["boxes"], train["width"]) == (21, 3, 21, [60, 60, 60])
    assert len(found["problems"]) == 1
    assert "Bird_1_0001.jpg" in found["problems"][0]


def test_unknown_split(tmp_path, check_data):
    status, _, err = check_data(write_cub(tmp_path), "--split", "dev")
    assert status == 2
    assert "there is no split 'dev', only train, val, trainval, test" in err


def test_built_in_set(check_data):
    status, out, _ = check_data("synthetic", "--split", "val")
    assert status == 0
    assert ["val", "300", "12", "300", "0", "0", "96", "96"] in [line.split() for line in out.splitlines()]
