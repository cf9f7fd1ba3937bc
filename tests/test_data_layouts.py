"""Every layout from real files: what is read, how splits are made, and that problems are all named."""

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from data_folders import (
    WNIDS,
    truncate,
    write_coco,
    write_cub,
    write_folder,
    write_ilsvrc,
    write_image,
    write_lines,
    write_wsol,
)
from PIL import Image

from scm_fast.data import DataProblems, DataSource, open_dataset
from scm_fast.data.layouts import registry
from scm_fast.data.opening import resolve_layout
from scm_fast.data.records import Record, Split
from scm_fast.errors import InputError


def ids(dataset):
    return [record.id for record in dataset.records]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def problems_of(root, split, **options):
    with pytest.raises(DataProblems) as caught:
        open_dataset(root, split, **options)
    return [str(problem) for problem in caught.value.problems], str(caught.value)


# --- CUB ------------------------------------------------------------------------------------------------


def test_cub(tmp_path):
    root = write_cub(tmp_path / "CUB_200_2011")
    test = open_dataset(tmp_path, "test")  # the folder around it will do
    assert (test.layout, test.num_classes, len(test)) == ("cub", 3, 12)
    record = test.records[0]
    assert record.id == "001.Bird_0/Bird_0_0002.jpg"
    assert record.boxes == ((5.5, 4.0, 35.5, 24.5),)  # x + width, y + height; fractions kept
    assert (record.label, record.size) == (0, (60, 40))
    assert record.path == str(root / "images" / record.id)
    assert test.load(0).size == test.size(0) == (60, 40)
    assert test.class_names == ["001.Bird_0", "002.Bird_1", "003.Bird_2"]
    assert test.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_cub_validation_is_carved_from_train(tmp_path):
    root = write_cub(tmp_path)
    train, val, trainval, test = (
        set(ids(open_dataset(root, s))) for s in ("train", "val", "trainval", "test")
    )
    assert train | val == trainval
    assert not train & val
    assert not trainval & test
    assert len(val) == 3  # a tenth of 8 images per class, at least one
    assert len({name.split("/")[0] for name in val}) == 3


def test_carving_rule_is_pinned(tmp_path):
    """The smallest SHA-256 of "0:<id>" in each class. A change would move splits that people reported on."""
    root = write_cub(tmp_path)
    assert ids(open_dataset(root, "val")) == [
        "001.Bird_0/Bird_0_0009.jpg",
        "002.Bird_1/Bird_1_0003.jpg",
        "003.Bird_2/Bird_2_0004.jpg",
    ]


def test_cub_reports_everything_at_once(tmp_path):
    root = write_cub(tmp_path)
    edit(root / "image_class_labels.txt", "3 1\n", "3 9\n")  # label out of range
    edit(root / "bounding_boxes.txt", "6 5.5 4.0 30.0 20.5", "6 5.5 4.0 300.0 20.5")  # outside
    edit(root / "bounding_boxes.txt", "9 5.5 4.0 30.0 20.5\n", "")  # no box
    edit(root / "bounding_boxes.txt", "12 5.5 4.0 30.0 20.5", "12 5.5 four 30.0 20.5")  # no number
    (root / "images" / "002.Bird_1" / "Bird_1_0002.jpg").unlink()  # missing
    (root / "images" / "002.Bird_1" / "Bird_1_0005.jpg").write_text("no image")  # unreadable
    edit(root / "images.txt", "36 003.Bird_2/Bird_2_0011.jpg", "36 003.Bird_2/Bird_2_0008.jpg")  # duplicated
    found, message = problems_of(root, "test")
    for expected in (
        "001.Bird_0/Bird_0_0002.jpg: label 8 is out of range, there are 3 classes",
        "001.Bird_0/Bird_0_0005.jpg: box (5.5, 4, 305.5, 24.5) is outside the image of 60 x 40",
        "001.Bird_0/Bird_0_0008.jpg: this image has no box",
        "bounding_boxes.txt:11: ['5.5', 'four', '30.0', '20.5']",
        "Bird_1_0002.jpg: no such image file",
        "Bird_1_0005.jpg: cannot read this image",
        "003.Bird_2/Bird_2_0008.jpg has two ids, 33 and 36",
    ):
        assert any(expected in problem for problem in found), expected
        assert expected in message
    assert len(found) == 8  # the unreadable box line also leaves its image without a box


def test_cub_missing_box_file(tmp_path):
    root = write_cub(tmp_path)
    (root / "bounding_boxes.txt").unlink()
    found, _ = problems_of(root, "test")
    assert len(found) == 1
    assert "bounding_boxes.txt: no such file" in found[0]
    assert len(open_dataset(root, "train")) == 21  # training needs no boxes


def test_cub_corner_pairs_where_sizes_belong(tmp_path):
    root = write_cub(tmp_path)
    lines = [f"{i} 20.0 10.0 55.0 38.0" for i in range(1, 37)]
    write_lines(root / "bounding_boxes.txt", *lines)
    found, _ = problems_of(root, "test")
    assert len(found) == 1
    assert (
        "bounding_boxes.txt: the columns look like x0, y0, x1, y1; expected x, y, width, height" in found[0]
    )
    assert "12 of 12 boxes" in found[0]


# --- wsolevaluation -------------------------------------------------------------------------------------


def test_wsol(tmp_path):
    metadata = write_wsol(tmp_path)
    for root in (tmp_path, metadata):
        test = open_dataset(root, "test")
        assert (test.layout, test.num_classes, len(test)) == ("wsol", 2, 4)
        assert test.records[0].boxes == ((35.0, 20.0, 55.0, 38.0), (0.0, 0.0, 10.0, 10.0))
        assert test.records[1].boxes == ((35.0, 20.0, 55.0, 38.0),)
        assert test.labels.tolist() == [0, 1, 0, 1]
    train = open_dataset(metadata, "train")
    assert not train.records.has_boxes
    assert ids(open_dataset(metadata, "val")) == [f"val/{i}.jpg" for i in range(4)]
    with pytest.raises(InputError, match="no split 'trainval'"):
        open_dataset(metadata, "trainval")  # its val is its own


def test_wsol_images_elsewhere(tmp_path):
    metadata = write_wsol(tmp_path)
    os.rename(tmp_path / "dataset", tmp_path / "pictures")
    with pytest.raises(InputError, match=r"test/0\.jpg is in none of .*--images"):
        open_dataset(metadata, "test")
    test = open_dataset(metadata, "test", images=tmp_path / "pictures" / "SET")
    assert test.load(0).size == (60, 40)
    with pytest.raises(InputError, match="nowhere: no such file or folder"):
        open_dataset(metadata, "test", images=tmp_path / "nowhere")


def test_wsol_without_val(tmp_path):
    metadata = write_wsol(tmp_path, ("train", "test"))
    train, val = ids(open_dataset(metadata, "train")), open_dataset(metadata, "val")
    assert len(train) == 2
    assert len(val) == 2
    assert sorted(train + ids(val)) == ids(open_dataset(metadata, "trainval"))


def test_wsol_masks(tmp_path):
    metadata = write_wsol(tmp_path, masks=True)
    test = open_dataset(metadata, "test")
    folder = tmp_path / "dataset" / "SET" / "test"
    assert not test.records.has_boxes
    assert test.records[2].masks == (str(folder / "2_m0.png"), str(folder / "2_m1.png"))
    assert test.records[2].ignore_mask == str(folder / "2_ignore.png")
    (folder / "1_m1.png").unlink()
    found, _ = problems_of(metadata, "test")
    assert len(found) == 1
    assert "1_m1.png: no such mask file (of test/1.jpg)" in found[0]


def test_wsol_problems(tmp_path):
    metadata = write_wsol(tmp_path)
    folder = metadata / "test"
    edit(folder / "class_labels.txt", "test/0.jpg,0", "test/0.jpg,2")
    edit(folder / "class_labels.txt", "test/3.jpg,1\n", "")
    edit(folder / "image_sizes.txt", "test/1.jpg,60,40", "test/1.jpg,40,60")
    with (folder / "image_ids.txt").open("a") as lines:
        lines.write("test/2.jpg\n")
    with (folder / "localization.txt").open("a") as lines:
        lines.write("test/9.jpg,1,2,3,4\ntest/2.jpg,1,2,3\n")
    found, _ = problems_of(metadata, "test")
    for expected in (
        "label 2 is out of range, there are 2 classes",
        "class_labels.txt: test/3.jpg is missing",
        "1.jpg: the annotations say 40 x 60, the image is 60 x 40",
        "image_ids.txt:5: duplicated id 'test/2.jpg' (also on line 3)",
        "localization.txt: test/9.jpg is not in image_ids.txt",
        "localization.txt:7: 'test/2.jpg,1,2,3' is not of the form 'path,x0,y0,x1,y1'",
    ):
        assert any(expected in problem for problem in found), expected
    assert len(found) == 6


def test_wsol_sizes_where_corners_belong(tmp_path):
    metadata = write_wsol(tmp_path)
    rows = [f"test/{i}.jpg,35,20,20,18" for i in range(4)]
    write_lines(metadata / "test" / "localization.txt", *rows)
    found, _ = problems_of(metadata, "test")
    assert len(found) == 1
    assert "localization.txt: the columns look like x, y, width, height; expected x0, y0, x1, y1" in found[0]


def test_one_turned_box_is_no_column_confusion(tmp_path):
    metadata = write_wsol(tmp_path)
    edit(metadata / "test" / "localization.txt", "test/1.jpg,35,20,55,38", "test/1.jpg,35,20,20,18")
    found, _ = problems_of(metadata, "test")
    assert len(found) == 1
    assert "test/1.jpg: box (35, 20, 20, 18) is empty or turned round" in found[0]


def test_wsol_boxes_are_in_stored_pixels(tmp_path):
    """The reference evaluator does not apply EXIF orientation, so neither may the images under its boxes."""
    metadata = write_wsol(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (60, 40)).save(tmp_path / "dataset" / "SET" / "test" / "0.jpg", exif=exif)
    test = open_dataset(metadata, "test")
    assert test.load(0).size == test.size(0) == (60, 40)


# --- ILSVRC ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flat", [True, False], ids=["flat", "folders"])
@pytest.mark.parametrize("source", ["xml", "csv", "text"])
def test_ilsvrc_box_sources_agree(tmp_path, source, flat):
    test = open_dataset(write_ilsvrc(tmp_path, source, flat=flat), "test")
    assert (test.layout, test.class_names) == ("ilsvrc", list(WNIDS))
    by_stem = {Path(record.id).stem: record for record in test.records}
    assert len(by_stem) == 6
    for i in range(6):
        record = by_stem[f"ILSVRC2012_val_{i + 1:08d}"]
        assert record.boxes == ((5.0, 4.0, 35.0, 24.0), (6.0, 5.0, 36.0, 25.0))
        assert record.label == i % 3
        assert record.size == (60, 40)


def test_ilsvrc_as_kaggle_unpacks_it(tmp_path):
    write_ilsvrc(tmp_path / "ILSVRC" / "Data" / "CLS-LOC", None)
    write_ilsvrc(tmp_path / "other", "csv")
    os.rename(tmp_path / "other" / "LOC_val_solution.csv", tmp_path / "LOC_val_solution.csv")
    test = open_dataset(tmp_path, "test")
    assert (test.layout, len(test), test.records.box_counts.sum()) == ("ilsvrc", 6, 12)


def test_ilsvrc_box_source_can_be_given(tmp_path):
    root = write_ilsvrc(tmp_path / "set", "xml")
    other = write_ilsvrc(tmp_path / "other", "csv")
    edit(other / "LOC_val_solution.csv", "5 4 35 24", "7 4 35 24")
    test = open_dataset(root, "test", boxes=other / "LOC_val_solution.csv")
    assert test.records[0].boxes[0] == (7.0, 4.0, 35.0, 24.0)


def test_ilsvrc_without_boxes_or_labels(tmp_path):
    found, _ = problems_of(write_ilsvrc(tmp_path, None), "test")
    assert "no boxes: expected Annotations/CLS-LOC/val/*.xml" in found[0]
    assert sum("no label" in problem for problem in found) == 6


def test_ilsvrc_disagreeing_label_and_missing_xml(tmp_path):
    root = write_ilsvrc(tmp_path, "xml", flat=False)
    annotations = root / "Annotations" / "CLS-LOC" / "val"
    edit(annotations / "ILSVRC2012_val_00000001.xml", WNIDS[0], WNIDS[1])
    (annotations / "ILSVRC2012_val_00000002.xml").unlink()
    write_lines(annotations / "ILSVRC2012_val_00000003.xml", "<annotation>")
    found, _ = problems_of(root, "test")
    assert any(f"00000001.JPEG: is in the folder {WNIDS[0]}, but" in problem for problem in found)
    assert any("00000002.JPEG: this image has no box" in problem for problem in found)
    assert any("00000003.xml: is no PASCAL annotation" in problem for problem in found)


def test_ilsvrc_training_splits(tmp_path):
    root = write_ilsvrc(tmp_path, "xml", train_boxes=True)
    train, val = open_dataset(root, "train"), open_dataset(root, "val")
    assert len(train) == 27
    assert len(val) == 3
    assert val.labels.tolist() == [0, 1, 2]
    assert val.records.box_counts.tolist() == [1, 1, 1]  # chosen among the images with boxes
    assert sorted(ids(train) + ids(val)) == sorted(ids(open_dataset(root, "trainval")))


@pytest.mark.parametrize("source", ["xml", "csv", "text"])
@pytest.mark.parametrize("flat", [True, False], ids=["flat", "folders"])
def test_ilsvrc_val_alone(tmp_path, source, flat):
    root = write_ilsvrc(tmp_path, source, flat=flat)
    shutil.rmtree(root / "train")
    test = open_dataset(root, "test")
    assert (test.layout, test.num_classes, len(test)) == ("ilsvrc", 3, 6)
    by_name = sorted(test.records, key=lambda record: Path(record.id).name)
    assert [record.label for record in by_name] == [0, 1, 2, 0, 1, 2]
    with pytest.raises(InputError, match="there is no split 'train', only test"):
        open_dataset(root, "train")


def test_ilsvrc_unknown_class(tmp_path):
    root = write_ilsvrc(tmp_path, "xml")
    shutil.rmtree(root / "train" / WNIDS[2])
    found, _ = problems_of(root, "test")
    assert len(found) == 2
    assert found[0] == f"val/ILSVRC2012_val_00000003.JPEG: {WNIDS[2]} is not among the 2 classes of train"


def test_ilsvrc_empty_class_folder(tmp_path):
    root = write_ilsvrc(tmp_path, "xml")
    (root / "train" / "n09999999").mkdir()
    found, _ = problems_of(root, "train")
    assert found == [f"{root}/train/n09999999: this class folder has no image: remove it, or put some in"]


# --- folders --------------------------------------------------------------------------------------------


def test_folder_without_splits(tmp_path):
    root = write_folder(tmp_path)
    train, val, test = (open_dataset(root, split) for split in ("train", "val", "test"))
    assert (train.layout, train.class_names) == ("folder", ["cat", "dog"])
    assert [len(part) for part in (train, val, test)] == [14, 2, 4]
    assert len({*ids(train), *ids(val), *ids(test)}) == 20
    assert sorted(ids(train) + ids(val)) == ids(open_dataset(root, "trainval"))
    assert not test.records.has_boxes


def test_folder_with_train_and_val(tmp_path):
    """val/ is val, and nothing else: the test images are a fifth of train/."""
    root = write_folder(tmp_path, ("train", "val"))
    train, val, test = (ids(open_dataset(root, split)) for split in ("train", "val", "test"))
    assert [len(part) for part in (train, val, test)] == [16, 20, 4]
    assert all(name.startswith("val/") for name in val)
    assert {name.split("/")[0] for name in train + test} == {"train"}
    assert not set(train) & set(test)
    with pytest.raises(InputError, match="no split 'trainval', only train, val, test"):
        open_dataset(root, "trainval")


def test_folder_with_three_splits(tmp_path):
    root = write_folder(tmp_path, ("train", "val", "test"))
    for split in ("train", "val", "test"):
        assert {name.split("/")[0] for name in ids(open_dataset(root, split))} == {split}


def test_folder_with_train_alone(tmp_path):
    with pytest.raises(InputError, match="no split 'test', only train, val, trainval"):
        open_dataset(write_folder(tmp_path, ("train",)), "test")


@pytest.mark.parametrize("name", ["cat_{i}.png", "cat/cat_{i}.png", "test/cat/cat_{i}.png"])
def test_coco_boxes_by_any_file_name(tmp_path, name):
    root = write_folder(tmp_path, ("train", "test"), per_class=3)
    files = [name.format(i=i) for i in range(3)]
    write_coco(root / "test.json", files + [file.replace("cat", "dog") for file in files], (5, 4, 30.5, 20))
    test = open_dataset(root, "test")
    assert test.records[0].boxes == ((5.0, 4.0, 35.5, 24.0),)
    assert test.records.box_counts.tolist() == [1] * 6


def test_coco_keeps_boxes_of_the_images_own_class(tmp_path):
    root = write_folder(tmp_path, ("train", "test"), per_class=1)
    path = write_coco(root / "test.json", ["cat_0.png", "dog_0.png"])
    coco = json.loads(path.read_text())
    coco["annotations"].append({"id": 1, "image_id": 0, "category_id": 9, "bbox": [0, 0, 3, 3]})
    coco["annotations"].append({"id": 2, "image_id": 0, "category_id": 7, "bbox": [1, 1, 3, 3]})
    coco["annotations"].append(
        {"id": 3, "image_id": 0, "category_id": 7, "bbox": [0, 0, 60, 40], "iscrowd": 1}
    )
    path.write_text(json.dumps(coco))
    assert open_dataset(root, "test").records[0].boxes == ((5.0, 4.0, 35.0, 24.0), (1.0, 1.0, 4.0, 4.0))


def test_coco_given_and_problems(tmp_path):
    root = write_folder(tmp_path / "set", ("train", "test"), per_class=2)
    files = ["test/cat/cat_0.png", "test/cat/cat_1.png", "test/dog/dog_0.png", "test/dog/dog_9.png"]
    path = write_coco(tmp_path / "boxes.json", files)
    coco = json.loads(path.read_text())
    coco["images"][1]["width"] = 61
    coco["annotations"] += [
        {"id": 1, "image_id": 77, "category_id": 7, "bbox": [0, 0, 3, 3]},
        {"id": 2, "image_id": 0, "category_id": 8, "bbox": [0, 0, 3, 3]},
        {"id": 3, "image_id": 0, "category_id": 7, "bbox": [0, 0, 3]},
        {"id": 4, "image_id": 0, "category_id": 7, "bbox": [50, 0, 30, 3]},
    ]
    path.write_text(json.dumps(coco))
    found, _ = problems_of(root, "test", boxes=path)
    for expected in (
        "annotation 1: image_id 77 is not in images",
        "annotation 2: category_id 8 is not in categories",
        "annotation 3: bbox [0, 0, 3] is not [x, y, width, height]",
        "test/cat/cat_0.png: box (50, 0, 80, 3) is outside the image of 60 x 40",
        "cat_1.png: the annotations say 61 x 40, the image is 60 x 40",
        "test/dog/dog_9.png is not among the images",
    ):
        assert any(expected in problem for problem in found), expected
    assert len(found) == 6, "nobody has drawn a box for dog_1.png, which the json does not list"


def test_coco_covering_all_splits(tmp_path):
    """One json for a folder without split folders: images of other splits are no problem, strangers are."""
    root = write_folder(tmp_path)
    files = [f"{c}/{c}_{i}.png" for c in ("cat", "dog") for i in range(10)]
    write_coco(root / "annotations.json", files)
    assert open_dataset(root, "test").records.box_counts.tolist() == [1] * 4
    write_coco(root / "annotations.json", [*files, "cat/ghost.png"])
    found, _ = problems_of(root, "test")
    assert len(found) == 1
    assert "cat/ghost.png is not among the images" in found[0]


@pytest.mark.parametrize("splits", [(), ("train", "val", "test")], ids=["one folder", "three"])
def test_coco_with_other_paths_is_one_problem(tmp_path, splits):
    """However many images there are: what the json has, and what the folder has."""
    root = write_folder(tmp_path, splits)
    files = [f"/data/export/{c}_{i}.png".removeprefix("/") for c in ("cat", "dog") for i in range(10)]
    json_file = write_coco(root / ("test.json" if splits else "annotations.json"), files)
    found, _ = problems_of(root, "test")
    prefix = "test/" if splits else ""
    assert len(found) == 1, found
    assert found[0].startswith(
        f"{json_file}: 20 of its 20 images are not there: the json has such as data/export/cat_0.png, "
        f"the folder has such as {prefix}cat/cat_"
    )


@pytest.mark.parametrize(
    "name", ["../cat/cat_0.png", "/etc/cat_0.png", "cat/../../cat_0.png", "C:\\cat_0.png"]
)
def test_coco_names_that_lead_outside(tmp_path, name):
    root = write_folder(tmp_path / "set")
    write_image(tmp_path / "cat" / "cat_0.png")
    files = [f"{c}/{c}_{i}.png" for c in ("cat", "dog") for i in range(10)]
    write_coco(root / "annotations.json", [*files, name])
    found, _ = problems_of(root, "test")
    assert len(found) == 1, found
    assert f"annotations.json: file_name {name!r} leads outside the folder {root}" in found[0]


def test_coco_names_that_fit_several_images(tmp_path):
    """Bare names of a json for all splits: one that is in two folders must not give its box to either."""
    root = tmp_path
    for name in ("cat", "dog"):
        for i in range(10):
            write_image(root / name / f"{i}.png")
    names = [f"{i}.png" for i in range(10)]
    write_coco(root / "annotations.json", names)
    found, _ = problems_of(root, "test")
    assert any("0.png may be cat/0.png or dog/0.png: its path is needed" in problem for problem in found)
    assert sum("its path is needed" in problem for problem in found) == 10


def test_coco_given_for_several_splits(tmp_path):
    root = write_folder(tmp_path / "set", ("train", "test"), per_class=2)
    files = [f"{s}/{c}/{c}_{i}.png" for s in ("train", "test") for c in ("cat", "dog") for i in (0, 1)]
    boxes = write_coco(tmp_path / "boxes.json", files)
    for split in ("test", "trainval"):
        assert open_dataset(root, split, boxes=boxes).records.box_counts.tolist() == [1] * 4


def test_coco_of_one_split_may_reuse_names_of_another(tmp_path):
    root = write_folder(tmp_path, ("train", "test"), per_class=2)
    write_coco(
        root / "test" / "_annotations.coco.json", [f"{c}_{i}.png" for c in ("cat", "dog") for i in (0, 1)]
    )
    assert open_dataset(root, "test").records.box_counts.tolist() == [1] * 4
    assert not open_dataset(root, "trainval").records.has_boxes


def test_folder_problems(tmp_path):
    root = write_folder(tmp_path, ("train", "test"))
    (root / "train" / "eel").mkdir()
    (root / "test" / "fox").mkdir()
    write_image(root / "test" / "fox" / "1.png")
    truncate(root / "test" / "cat" / "cat_3.png")
    assert problems_of(root, "train")[0] == [
        f"{root}/train/eel: this class folder has no image: remove it, or put some in"
    ]
    found, _ = problems_of(root, "test", verify="pixels")
    assert len(found) == 2
    assert f"{root}/test/fox: this class is not among the folders of train" in found
    assert any("cat_3.png: cannot read this image" in problem for problem in found)


def test_a_folder_too_high(tmp_path):
    write_folder(tmp_path / "images")
    found, _ = problems_of(tmp_path, "train")
    assert "'images' is the only class folder" in found[0]


def test_broken_json(tmp_path):
    root = write_folder(tmp_path)
    (root / "annotations.json").write_text("{")
    with pytest.raises(InputError, match=r"annotations\.json: cannot read this COCO json"):
        open_dataset(root, "test")
    (root / "annotations.json").write_text('{"images": [], "annotations": [3]}')
    with pytest.raises(InputError, match="a list of objects named 'annotations'"):
        open_dataset(root, "test")
    (root / "annotations.json").write_text("[]")
    with pytest.raises(
        InputError, match=r"annotations\.json: a COCO json has a list of objects named 'images'"
    ):
        open_dataset(root, "test")


def test_folder_images_are_upright(tmp_path):
    root = write_folder(tmp_path, ("train", "test"))
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (60, 40)).save(root / "test" / "cat" / "a.jpg", exif=exif)
    test = open_dataset(root, "test")
    index = ids(test).index("test/cat/a.jpg")
    assert test.load(index).size == test.size(index) == (40, 60)


# --- all layouts ----------------------------------------------------------------------------------------


def test_skip_bad_images(tmp_path, caplog):
    root = write_cub(tmp_path)
    edit(root / "bounding_boxes.txt", "6 5.5 4.0 30.0 20.5", "6 5.5 4.0 300.0 20.5")
    truncate(root / "images" / "002.Bird_1" / "Bird_1_0005.jpg").write_bytes(b"")
    test = open_dataset(root, "test", skip_bad_images=True)
    assert len(test) == 10
    bad = {"001.Bird_0/Bird_0_0005.jpg", "002.Bird_1/Bird_1_0005.jpg"}
    assert {problem.record_id for problem in test.left_out} == bad
    assert not bad & set(ids(test))
    assert "left out 2 images" in caplog.text
    assert "Bird_1_0005.jpg" in caplog.text


def test_skip_bad_images_does_not_hide_a_missing_file_of_boxes(tmp_path):
    root = write_cub(tmp_path)
    (root / "bounding_boxes.txt").unlink()
    found, _ = problems_of(root, "test", skip_bad_images=True)
    assert "bounding_boxes.txt" in found[0]


def test_truncated_image_shows_when_pixels_are_verified(tmp_path):
    root = write_cub(tmp_path)
    truncate(root / "images" / "002.Bird_1" / "Bird_1_0005.jpg")
    assert len(open_dataset(root, "test")) == 12  # its header is whole
    found, _ = problems_of(root, "test", verify="pixels")
    assert len(found) == 1
    assert "Bird_1_0005.jpg: cannot read this image (image file is truncated" in found[0]


def test_a_source_opens_each_split_once(tmp_path):
    root = write_folder(tmp_path)
    source = DataSource(root, skip_bad_images=True)
    test = source.split("test")
    assert (test.split, test.root) == ("test", str(root))
    shutil.rmtree(root)
    assert source.split("test") is test
    with pytest.raises(InputError, match="no such folder"):
        source.split("train")


def test_layout_can_be_forced(tmp_path):
    root = write_cub(tmp_path)
    layout, found = resolve_layout(root)
    assert (layout.name, found) == ("cub", root)
    forced = open_dataset(root / "images", "trainval", layout="folder")
    assert forced.class_names == ["001.Bird_0", "002.Bird_1", "003.Bird_2"]
    with pytest.raises(InputError, match="this is no ilsvrc layout"):
        open_dataset(root, "train", layout="ilsvrc")
    with pytest.raises(InputError, match="layout 'coco': expected auto or one of cub, wsol"):
        open_dataset(root, "train", layout="coco")


def test_a_registered_layout_is_found_checked_and_filtered(monkeypatch):
    """One that has no files: two grey images, of which one has a label that there is not."""

    def read(root, name, boxes):
        records = [Record("a", 0), Record("b", 7)]
        return Split("grey", name, None, ["grey"], records, pixels=np.full((2, 4, 4, 3), (0, 1, 2), np.uint8))

    monkeypatch.setattr(registry, "_layouts", dict(registry._layouts))
    grey = registry.Layout(
        name="grey",
        summary="two grey images",
        expects="the word grey",
        find_root=lambda root: root if str(root) == "grey" else None,
        splits=lambda root: ("train",),
        read=read,
        takes=("boxes",),
        on_disk=False,
    )
    registry.register(grey)
    assert "grey" in registry.layout_names()
    with pytest.raises(InputError, match="there is one of this name"):
        registry.register(grey)
    with pytest.raises(DataProblems, match="b: label 7 is out of range"):
        open_dataset("grey", "train")
    dataset = open_dataset("grey", "train", skip_bad_images=True)
    assert (dataset.layout, ids(dataset)) == ("grey", ["a"])
    assert dataset.load_tensor(0).shape == (3, 4, 4)
    with pytest.raises(InputError, match="no use for it, only wsol"):
        open_dataset("grey", "train", images=".")
    with pytest.raises(InputError, match=r"this is no grey layout\. Expected the word grey"):
        open_dataset("green", "train", layout="grey")


@pytest.mark.parametrize("layout", ["auto", "cub", "folder"])
def test_wrong_folder(tmp_path, layout):
    with pytest.raises(InputError, match="nothing: no such folder"):
        open_dataset(tmp_path / "nothing", "train", layout=layout)
    with pytest.raises(InputError, match="no known layout" if layout == "auto" else f"no {layout} layout"):
        open_dataset(tmp_path, "train", layout=layout)


def test_option_of_another_layout(tmp_path):
    root = write_cub(tmp_path)
    with pytest.raises(
        InputError, match=r"boxes=.*: the cub layout has no use for it, only ilsvrc and folder"
    ):
        open_dataset(root, "test", boxes=root / "classes.txt")


def test_many_problems_are_counted_and_shortened(tmp_path):
    root = write_cub(tmp_path, classes=5)
    write_lines(root / "bounding_boxes.txt", *(f"{i} 5 4 0 20.5" for i in range(1, 61)))
    for path in (root / "images").glob("*/*.jpg"):
        path.unlink()
    found, message = problems_of(root, "trainval")
    assert len(found) == 80
    assert "80 problems" in message
    assert "... and 40 more" in message


def test_dataset_survives_pickling(tmp_path):
    test = open_dataset(write_wsol(tmp_path, masks=True), "test")
    again = pickle.loads(pickle.dumps(test))
    assert list(again.records) == list(test.records)
    with pytest.raises(IndexError):
        test.records[4]
    assert test.records[-1].id == "test/3.jpg"


@pytest.fixture
def real_cub():
    folder = os.environ.get("SCM_FAST_DATA")
    if not folder:
        pytest.skip("SCM_FAST_DATA is not set")
    return Path(folder) / "CUB_200_2011"


def test_real_cub(real_cub):
    test = open_dataset(real_cub, "test")
    assert (len(test), test.num_classes) == (994, 200)
    assert test.records.box_counts.tolist() == [1] * 994
    assert np.bincount(test.labels, minlength=200).min() > 0
    sizes = [len(open_dataset(real_cub, split, verify="names")) for split in ("train", "val", "trainval")]
    assert sizes[0] + sizes[1] == sizes[2] == 5000
    assert 400 <= sizes[1] <= 600
