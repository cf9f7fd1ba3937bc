"""Pseudo-boxes in place of the validation split's own: read, matched to its images, named in every output."""

import csv
import json
import logging
import os
import shutil
from dataclasses import replace

import pytest
import torch
from data_folders import write_coco, write_cub, write_folder, write_ilsvrc, write_lines, write_wsol
from test_evaluate_cli import make_data
from test_training import tiny

import scm_fast
from scm_fast import InputError
from scm_fast.cli import main
from scm_fast.cli.train import train
from scm_fast.data import DataProblems, DataSource, open_dataset
from scm_fast.data.layouts import synthetic
from scm_fast.evaluation import EvaluationSettings, Predictor
from scm_fast.evaluation import evaluate as run_evaluation

BOX = (5, 4, 30, 20)  # x, y, width, height
CORNERS = (5.0, 4.0, 35.0, 24.0)
LAYOUTS = {
    "folder": write_folder,
    "folder with splits": lambda root: write_folder(root, ("train", "val", "test")),
    "cub": write_cub,
    "wsol": write_wsol,
    "ilsvrc": lambda root: write_ilsvrc(root, "csv"),
    "synthetic": lambda root: "synthetic",
}
# What the name of an image may be, given its path below the image folder and as a file.
NAMES = {
    "id": lambda record: record.id,
    "file": lambda record: record.path or record.id,
    "from another folder": lambda record: os.path.relpath(record.path or record.id, "/usr"),
    "moved": lambda record: f"/elsewhere/{record.id}",
}


@pytest.fixture(scope="module", params=LAYOUTS)
def data(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        few = replace(synthetic.SETS["synthetic"], counts={"train": 24, "val": 12, "test": 12})
        patch.setitem(synthetic.SETS, "synthetic", few)
        yield LAYOUTS[request.param](tmp_path_factory.mktemp("data") / "set")


@pytest.mark.parametrize("name", NAMES)
def test_every_layout_takes_pseudo_boxes_for_val_alone(data, name, tmp_path, caplog):
    plain = DataSource(data)
    val, test = plain.split("val"), plain.split("test")
    size = val.size(0)
    # Those of other splits are in the file as well, as if all images had been predicted.
    records = [*val.records, *test.records, *plain.split("train").records]
    names = [NAMES[name](record) for record in records]
    file = write_coco(tmp_path / "found.json", names, BOX, width=size[0], height=size[1])
    with caplog.at_level(logging.WARNING):
        source = DataSource(data, val_boxes=file)
        chosen_on = source.validation("val")
    assert f"{len(val)} of {len(val)} images have a pseudo-box of {file}" in caplog.text
    assert chosen_on.pseudo_boxes == str(file)
    assert [record.id for record in chosen_on.records] == [record.id for record in val.records]
    assert {record.boxes for record in chosen_on.records} == {(CORNERS,)}
    assert source.validation("val") is chosen_on
    for split in ("val", "test", "train"):
        assert [r.boxes for r in source.split(split).records] == [r.boxes for r in plain.split(split).records]
        assert source.split(split).pseudo_boxes is None


@pytest.mark.parametrize("place", ["localization.txt", "val/localization.txt"])
def test_a_wsolevaluation_folder(tmp_path, place):
    """The folder or the file; also where the data set has no boxes of its own for val."""
    data = write_wsol(tmp_path / "set")
    rows = [f"val/{i}.jpg,5,4,35,24" for i in range(3)] + ["val/0.jpg,0,0,10,10", "test/0.jpg,0,0,9,9"]
    file = write_lines(tmp_path / "found" / place, *rows)
    (data / "val/localization.txt").unlink()
    with pytest.raises(DataProblems, match=r"localization.txt: no such file"):
        open_dataset(data, "val")
    for path in (tmp_path / "found", file):
        dataset = open_dataset(data, "val", pseudo_boxes=path)
        boxes = [record.boxes for record in dataset.records]
        assert boxes == [(CORNERS, (0, 0, 10, 10)), (CORNERS,), (CORNERS,), ()]


def test_masks_give_way_to_pseudo_boxes(tmp_path):
    data = write_wsol(tmp_path / "set", masks=True)
    file = write_coco(tmp_path / "found.json", [f"val/{i}.jpg" for i in range(4)])
    assert all(record.masks for record in open_dataset(data, "val").records)
    dataset = open_dataset(data, "val", pseudo_boxes=file)
    assert [(record.boxes, record.masks) for record in dataset.records] == [((CORNERS,), ())] * 4
    with pytest.raises(InputError, match=r"localization.txt: masks; expected boxes"):
        open_dataset(data, "val", pseudo_boxes=data)


@pytest.fixture
def cats(tmp_path):
    """(data, ids of val) of two classes with 30 images each."""
    data = write_folder(tmp_path / "set", per_class=30)
    return data, [record.id for record in open_dataset(data, "val").records]


def test_the_end_of_a_path_is_enough_if_it_is_one_images(cats, tmp_path):
    data, ids = cats
    bare = [record_id.split("/")[1] for record_id in ids]
    dataset = open_dataset(data, "val", pseudo_boxes=write_coco(tmp_path / "found.json", bare))
    assert all(record.boxes for record in dataset.records)
    twice = write_folder(tmp_path / "twice", ("train", "val", "test"))
    shutil.copy(twice / "val/cat/cat_0.png", twice / "val/dog/cat_0.png")
    file = write_coco(tmp_path / "found.json", ["cat_0.png"])
    with pytest.raises(InputError, match=r"cat_0.png may be val/cat/cat_0.png or val/dog/cat_0.png"):
        open_dataset(twice, "val", pseudo_boxes=file)
    file = write_coco(tmp_path / "found.json", [f"a/{ids[0]}", f"b/{ids[0]}"])
    with pytest.raises(InputError, match=f"a/{ids[0]} and b/{ids[0]} may both be {ids[0]}"):
        open_dataset(data, "val", pseudo_boxes=file)


def test_images_of_other_splits_are_not_taken_for_those_of_val(tmp_path):
    """The names agree, but the file is another one."""
    data = write_folder(tmp_path / "set", ("train", "val", "test"))
    for name in ("train/cat/cat_0.png", "cat/cat_99.png", "photos/cat_0.png"):
        path = data / name if name.startswith("train") else tmp_path / name
        file = write_coco(tmp_path / "found.json", [str(path)])
        with pytest.raises(InputError) as caught:
            open_dataset(data, "val", pseudo_boxes=file)
        message = (
            f"{file}: none of its images is in split 'val': it has {path}, the split has val/cat/cat_0.png"
        )
        assert str(caught.value) == message


def test_files_that_are_no_pseudo_boxes(cats, tmp_path):
    data, ids = cats
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, message in (
        (tmp_path / "missing.json", r"missing.json: no such file or folder \(pseudo-boxes of split 'val'\)"),
        (empty, "empty: no localization.txt with pseudo-boxes, here or in val/"),
        (write_lines(tmp_path / "bad.json", "no json"), "bad.json: cannot read this COCO json"),
        (write_coco(tmp_path / "none.json", []), "none.json: none of its images .* it has no image"),
        (write_coco(tmp_path / "twice.json", [ids[0], ids[0]]), f"duplicated image '{ids[0]}'"),
        (write_coco(tmp_path / "out.json", ids, (5, 4, 300, 20)), "outside the image of 60 x 40"),
        (write_coco(tmp_path / "zero.json", ids, (0, 0, 0, 0)), "zero.json: it has no box for any of the"),
    ):
        with pytest.raises(InputError, match=message):
            open_dataset(data, "val", pseudo_boxes=path)


def test_images_without_a_usable_box_count_for_classification_alone(cats, tmp_path, caplog):
    """Not in the file, with an empty box, or of another size there."""
    data, ids = cats
    file = write_coco(tmp_path / "found.json", ids[1:])
    content = json.loads(file.read_text())
    content["annotations"][0]["bbox"] = [0, 0, 0, 0]
    content["images"][1] |= {"width": 40, "height": 60}
    file.write_text(json.dumps(content))
    with caplog.at_level(logging.WARNING):
        dataset = open_dataset(data, "val", pseudo_boxes=file)
    assert [len(record.boxes) for record in dataset.records] == [0, 0, 0] + [1] * (len(ids) - 3)
    assert f"{len(ids) - 3} of {len(ids)} images have a pseudo-box" in caplog.text
    assert "; 1 are left out, their image has another size there" in caplog.text


def test_boxes_of_the_images_own_class_come_first(cats, tmp_path):
    data, ids = cats
    cat, dog = next(i for i in ids if "cat_" in i), next(i for i in ids if "dog_" in i)
    file = write_coco(tmp_path / "found.json", [cat, dog])
    content = json.loads(file.read_text())
    # 7 is cat and 9 dog: a cat and a dog in the picture of a cat; in that of a dog the classifier saw a cat.
    content["annotations"] = [
        {"id": 1, "image_id": 0, "category_id": 9, "bbox": [0, 0, 9, 9]},
        {"id": 2, "image_id": 0, "category_id": 7, "bbox": list(BOX)},
        {"id": 3, "image_id": 1, "category_id": 7, "bbox": list(BOX)},
    ]
    file.write_text(json.dumps(content))
    found = {r.id: r.boxes for r in open_dataset(data, "val", pseudo_boxes=file).records if r.boxes}
    assert found == {cat: (CORNERS,), dog: (CORNERS,)}


# In the commands.


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("shapes"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    options = {"depth": 2, "embed_dim": 48, "num_heads": 3}
    model = scm_fast.create_model("deit_tiny_patch16_224", 3, image_size=64, backbone_options=options)
    return scm_fast.save_model(model, tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def evaluate(shapes, checkpoint, tmp_path, capsys):
    """(metrics.json, what was printed) of a run of the command."""

    def run(*arguments, status=0):
        out = tmp_path / "out"
        words = ["evaluate", "--checkpoint", checkpoint, "--data", shapes, "--out", out, "--workers", 0]
        assert main([str(word) for word in [*words, *arguments]]) == status
        shown = capsys.readouterr()
        return (None, shown.err) if status else (json.loads((out / "metrics.json").read_text()), shown.out)

    return run


def test_the_same_boxes_choose_the_same_threshold(evaluate, shapes):
    own, shown = evaluate()
    assert own["val_boxes"] is None
    assert "pseudo" not in shown
    file = shapes / "val.json"
    pseudo, shown = evaluate("--val-boxes", file)
    for name in (
        "protocol",
        "threshold",
        "threshold_rule",
        "metrics",
        "errors",
        "baselines",
        "curves",
        "images_with_boxes",
    ):
        assert pseudo[name] == own[name]
    assert own["threshold_choice"].endswith(", the best GT-Known on 7 held-out images")
    choice = own["threshold_choice"].replace("7 held-out images", f"7 pseudo-boxes of {file}")
    assert pseudo["threshold_choice"] == choice
    assert f"protocol heldout; threshold {choice}" in shown
    assert f"pseudo-boxes of {file} stand in for the boxes of split val: 7 of 7 images have one" in shown
    assert pseudo["val_boxes"] == {
        **{"file": str(file), "split": "val"},
        **{"boxes": 7, "images": 7, "images_with_boxes": 7},
    }


def test_predictions_as_they_are_written_choose_the_threshold(evaluate, shapes, checkpoint, tmp_path, capsys):
    """The boxes cut at 0.6 are found again at 0.6, whatever those of the data set would choose."""
    words = ["predict", shapes / "val", "--checkpoint", checkpoint, "--out", tmp_path, "--format", "coco"]
    assert main([str(word) for word in [*words, "--threshold", 0.6]]) == 0
    capsys.readouterr()
    file = tmp_path / "predictions.coco.json"
    metrics, shown = evaluate("--val-boxes", file, "--split", "val", "--report")
    assert metrics["val_boxes"]["images_with_boxes"] == 7
    assert f"pseudo-boxes of {file}" in shown
    own, _ = evaluate("--protocol", "maxbox", "--split", "val")
    # Measured with the split's own boxes, although it is the one that has pseudo-boxes to choose by.
    assert metrics["metrics"]["max_box_acc"] == own["metrics"]["max_box_acc"]
    assert metrics["curves"] == own["curves"]
    report = (tmp_path / "out/report.html").read_text()
    assert f"Pseudo-boxes of {file} stand in for the boxes of split val" in report
    assert f"pseudo-boxes of {file}." in report

    predictor = Predictor(scm_fast.load_model(checkpoint), torch.device("cpu"))
    validation = EvaluationSettings("maxbox", split="val", validation=True, workers=0)
    done = run_evaluation(predictor, DataSource(shapes, val_boxes=file), validation)
    curve = done.metrics.curves["gt_known_published"]  # of the best class's map, as in predict
    assert curve[600] == 100
    assert curve.min() < 100
    assert done.result.choice.endswith(f"the best GT-Known on 7 pseudo-boxes of {file}")


def test_without_boxes_to_measure_with_the_threshold_is_chosen_all_the_same(evaluate, shapes, tmp_path):
    data = make_data(tmp_path / "bare", boxes=False)
    metrics, shown = evaluate("--data", data, "--val-boxes", shapes / "val.json")
    assert metrics["protocol"] == "heldout"
    assert metrics["threshold"] is not None
    assert "gt_known" not in metrics["metrics"]
    assert "pseudo-boxes of" in shown
    found = json.loads((tmp_path / "out/predictions.coco.json").read_text())
    assert len(found["annotations"]) == 17


def test_wrong_val_boxes_are_told_in_a_line(evaluate, tmp_path):
    file = write_coco(tmp_path / "found.json", ["photo.jpg"])
    _, told = evaluate("--val-boxes", file, status=2)
    reason = f"{file}: none of its images is in split 'val': it has photo.jpg, the split has val/disc/000.jpg"
    assert told.splitlines()[-1] == f"scm-fast evaluate: error: {reason}"
    _, told = evaluate("--val-boxes", file, "--protocol", "maxbox", status=2)
    assert "--val-boxes: protocol maxbox does not choose by boxes of val, heldout does" in told


def test_training_chooses_on_pseudo_boxes_and_says_so(shapes, tmp_path, capsys):
    """Images have no boxes: the epoch's line, its log, the kept model's threshold and the last table say so."""
    data = make_data(tmp_path / "bare", boxes=False)
    file = shapes / "val.json"
    train(tiny(tmp_path / "run", str(data), val_boxes=str(file), report=True))
    shown = capsys.readouterr().out
    device, epoch, *_ = shown.splitlines()
    assert device.startswith("running on cpu")
    assert epoch.startswith("epoch 1/1: ")
    assert f" % on 7 pseudo-boxes of {file}, " in epoch
    with (tmp_path / "run/log.csv").open() as log:
        (row,) = csv.DictReader(log)
    assert row["pseudo_boxes"] == "7"
    assert float(row["gt_known"]) >= 0
    threshold = scm_fast.load_model(tmp_path / "run/best_gt_known").config.threshold
    assert threshold.value == float(row["threshold"])
    choice = f"{threshold}, the best GT-Known on 7 pseudo-boxes of {file}"
    assert f"protocol heldout; threshold {choice}" in shown
    metrics = json.loads((tmp_path / "run/evaluation/metrics.json").read_text())
    assert metrics["threshold_choice"] == choice
    assert metrics["val_boxes"]["file"] == str(file)
    assert f"Pseudo-boxes of {file} stand in" in (tmp_path / "run/evaluation/report.html").read_text()


def test_the_epoch_was_chosen_on_pseudo_boxes_under_any_protocol(shapes, tmp_path, capsys):
    train(tiny(tmp_path / "run", str(shapes), val_boxes=str(shapes / "val.json"), protocol="maxbox"))
    shown = capsys.readouterr().out
    assert "the best GT-Known on the evaluated images themselves" in shown
    assert f"pseudo-boxes of {shapes / 'val.json'} stand in for the boxes of split val" in shown
