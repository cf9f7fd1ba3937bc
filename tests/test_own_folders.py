"""Folders as people have them: other names of splits, links, phones' photos, boxes of some images, odd names."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from data_folders import write_coco, write_cub, write_folder, write_image
from PIL import Image

from scm_fast import InputError, create_model, load_model, save_model
from scm_fast.cli import main
from scm_fast.data import (
    DataProblems,
    DataSource,
    build_evaluation_loader,
    open_dataset,
    published_preprocessing,
)
from scm_fast.data import heic as heic_module
from scm_fast.data.listing import image_paths, list_images

SPLITS = ("train", "val", "test")


def ids(dataset):
    return [record.id for record in dataset.records]


def check_data(capsys, *arguments):
    """(exit status, contents) of the command."""
    status = main(["check-data", *map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


# --- names of splits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["valid", "validation", "dev", "Val"])
def test_val_has_many_names(tmp_path, name, capsys):
    root = write_folder(tmp_path, ("train", name, "test"))
    assert {path.split("/")[0] for path in ids(open_dataset(root, "val"))} == {name}
    assert len(open_dataset(root, "train")) == 20, "nothing is carved from train"
    status, contents = check_data(capsys, root)
    assert status == 0
    assert contents["notes"] == [f"{name}/ is split val, test/ is split test, train/ is split train"]


@pytest.mark.parametrize(
    ("folders", "note"),
    [
        ((), "no split folders: a fifth of each class is split test, a tenth of the rest is split val"),
        (
            ("train", "val"),
            "val/ is split val, there is no test folder, so a fifth of each class of train/ is split test, "
            "the rest of train/ is split train",
        ),
        (
            ("training", "test"),
            "test/ is split test, a tenth of each class of training/ is split val, "
            "the rest of training/ is split train",
        ),
    ],
)
def test_what_became_what_is_said(tmp_path, folders, note, capsys, caplog):
    root = write_folder(tmp_path, folders)
    assert check_data(capsys, root)[1]["notes"] == [note]
    source = DataSource(root)
    assert note in source.split("train").notes
    source.split("test")
    assert caplog.text.count(note) == 1, "once, however many splits are opened"


def test_three_usual_folders_need_no_word(tmp_path, caplog):
    open_dataset(write_folder(tmp_path, SPLITS), "train")
    assert caplog.text == ""


def test_two_names_of_one_split(tmp_path):
    root = write_folder(tmp_path, ("train", "val", "valid", "test"))
    with pytest.raises(DataProblems, match=r"val/ and valid/ are names of one split"):
        open_dataset(root, "val")


def test_split_folders_without_train_are_no_classes(tmp_path):
    root = write_folder(tmp_path, ("val", "test"))
    with pytest.raises(DataProblems, match=r"it has test/, val/ and no train/"):
        open_dataset(root, "test")


def test_a_class_may_be_called_train(tmp_path):
    for name in ("bus", "train"):
        for number in range(10):
            write_image(tmp_path / name / f"{number}.png")
    assert open_dataset(tmp_path, "train").class_names == ["bus", "train"]


def test_folders_and_images_that_are_in_no_split_are_named(tmp_path, caplog):
    root = write_folder(tmp_path, ("train", "test"))
    write_image(root / "more" / "cat" / "1.png")
    write_image(root / "test" / "loose.png")
    open_dataset(root, "test")
    assert "left out more/: not the name of a split (train, training, val, valid" in caplog.text
    assert "left out 1 images that are in test/ itself and in no class folder" in caplog.text


# --- links ----------------------------------------------------------------------------------------------


def test_a_link_that_leads_back_is_passed_over(tmp_path, capsys):
    root = write_folder(tmp_path / "set")
    (root / "cat" / "again").symlink_to(root / "cat")
    (root / "dog" / "up").symlink_to(tmp_path)
    (root / "everything").symlink_to(root)
    every = [name for split in SPLITS for name in ids(open_dataset(root, split))]
    assert len(every) == len(set(every)) == 20
    status, contents = check_data(capsys, root)
    assert status == 0
    assert contents["splits"][0]["classes"] == 2
    assert "passed over cat/again, dog/up: a link to a folder above it" in contents["notes"]
    assert "passed over everything, which is a link to a folder above it" in contents["notes"]


def test_folders_that_link_to_each_other_end(tmp_path):
    """Ten folders with a link to each of the others have millions of paths."""
    for number in range(10):
        write_image(tmp_path / f"{number}" / "photo.png")
        for other in range(10):
            if other != number:
                (tmp_path / f"{number}" / f"to_{other}").symlink_to(tmp_path / f"{other}")
    begin = time.monotonic()
    assert image_paths(tmp_path) == [f"{number}/photo.png" for number in range(10)]
    assert time.monotonic() - begin < 5


def test_a_file_counts_once(tmp_path, capsys):
    """A link is left out where its file is there itself; a second name is no second image."""
    root = write_folder(tmp_path / "set", ("train", "test"))
    (root / "test" / "cat" / "copy.png").symlink_to(root / "train" / "cat" / "cat_0.png")
    (root / "train" / "dog" / "cats").symlink_to(root / "train" / "cat")
    outside = write_image(tmp_path / "elsewhere" / "new.png")
    for split in ("train", "test"):
        (root / split / "dog" / "new.png").symlink_to(outside)
    train, test = open_dataset(root, "trainval"), open_dataset(root, "test")
    assert (len(train), len(test)) == (20, 21), "the file elsewhere is in the first place that links to it"
    assert "test/dog/new.png" in ids(test)
    said = (
        "passed over test/cat/copy.png, train/dog/cats, train/dog/new.png: a link to what is listed already"
    )
    assert said in train.notes
    assert said in test.notes


def test_images_that_are_links_are_images(tmp_path):
    """A folder may consist of links to a collection, even to a hidden one inside."""
    for number, place in enumerate((".store", "../store")):
        root = tmp_path / f"{number}" / "set"
        for name in ("cat", "dog"):
            (root / name).mkdir(parents=True)
            for i in range(5):
                target = write_image(root / place / f"{name}{i}.png")
                (root / name / f"{i}.png").symlink_to(target)
        assert len(image_paths(root)) == 10
        assert len(open_dataset(root, "trainval")) + len(open_dataset(root, "test")) == 10


# --- files that are no images ---------------------------------------------------------------------------


def test_files_that_are_left_out_are_counted_by_suffix(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(heic_module, "can_read_heic", lambda: False)
    root = write_folder(tmp_path)
    for name in ("a.heic", "b.HEIC", "c.mov"):
        (root / "cat" / name).write_bytes(b"")
    (note,) = check_data(capsys, root)[1]["notes"][1:]
    assert note == (
        "left out 3 files that are no image: 2 .heic, 1 .mov; pip install 'scm-fast[heic]' reads HEIC photos"
    )


def test_heic_photos_are_images_as_any_other(tmp_path):
    pytest.importorskip("pillow_heif").register_heif_opener()
    root = write_folder(tmp_path, ("train", "test"))
    Image.new("RGB", (48, 64), (200, 30, 30)).save(root / "test" / "cat" / "phone.HEIC")
    test = open_dataset(root, "test")
    index = ids(test).index("test/cat/phone.HEIC")
    assert test.load(index).size == test.size(index) == (48, 64)
    assert abs(test.load(index).getpixel((20, 20))[0] - 200) < 20
    assert test.load_tensor(index).shape == (3, 64, 48)


def test_a_pipe_does_not_hang(tmp_path, capsys):
    root = write_folder(tmp_path)
    os.mkfifo(root / "cat" / "pipe.jpg")
    os.mkfifo(root / "boxes.json")
    status, contents = check_data(capsys, root)
    assert status == 0
    assert any("cat/pipe.jpg: not a regular file" in note for note in contents["notes"])
    with pytest.raises(InputError, match=r"boxes\.json: cannot read this COCO json \(it is no file\)"):
        open_dataset(root, "test", boxes=root / "boxes.json")
    cub = write_cub(tmp_path / "cub")
    (cub / "bounding_boxes.txt").unlink()
    os.mkfifo(cub / "bounding_boxes.txt")
    with pytest.raises(DataProblems, match=r"bounding_boxes\.txt: not a regular file"):
        open_dataset(cub, "test")


def test_names_that_are_not_utf8(tmp_path):
    """The process has output that is as strict as a shell's."""
    root = write_folder(tmp_path)
    os.rename(root / "cat" / "cat_3.png", os.fsencode(root) + b"/cat/caf\xe9.png")
    (root / "dog" / os.fsdecode(b"\xff.png")).write_bytes(b"no image")
    command = [sys.executable, "-m", "scm_fast.cli", "check-data", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONUTF8": "1"})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert r"\udcff.png: cannot read this image" in done.stdout
    (root / "dog" / os.fsdecode(b"\xff.png")).unlink()
    datasets = [open_dataset(root, split) for split in SPLITS]
    (dataset,) = [d for d in datasets if any("caf" in name for name in ids(d))]
    loader = build_evaluation_loader(
        dataset, published_preprocessing(training=False), batch_size=32, workers=0
    )
    assert sum(len(batch.labels) for batch in loader) == len(dataset)


def test_a_report_on_names_that_are_not_utf8(tmp_path):
    root = write_folder(tmp_path / "set", ("train", "val", "test"), per_class=1)
    os.rename(root / "test" / "cat" / "cat_0.png", os.fsencode(root) + b"/test/cat/caf\xe9.png")
    tiny = {"patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 1}
    model = create_model("vit_tiny_patch16_224", 2, image_size=16, backbone_options=tiny)
    command = ["evaluate", "--checkpoint", save_model(model, tmp_path / "model"), "--data", root, "--report"]
    assert main([*map(str, command), "--out", str(tmp_path / "out"), "--workers", "0"]) == 0
    for file in ("report.html", "predictions.csv"):
        assert r"caf\udce9.png" in (tmp_path / "out" / file).read_text(encoding="utf-8")


# --- the json with boxes --------------------------------------------------------------------------------

FILES = [f"{name}/{name}_{number}.png" for name in ("cat", "dog") for number in range(10)]


@pytest.mark.parametrize(
    "name",
    ["boxes.json", "my_project.json", "annotations/instances_default.json", "instances_Test.json"],
)
def test_a_json_is_found_by_its_content(tmp_path, name, capsys):
    root = write_folder(tmp_path)
    (root / name).parent.mkdir(exist_ok=True)
    write_coco(root / name, FILES)
    (root / "settings.json").write_text('{"theme": "dark"}')
    test = open_dataset(root, "test")
    assert test.records.box_counts.tolist() == [1] * 4
    status, contents = check_data(capsys, root)
    assert status == 0
    assert contents["splits"][2]["box_source"] == str(root / name)
    assert contents["splits"][2]["classes"] == 2, "annotations/ is no class"
    unused = f"{root / 'settings.json'} is not used: a COCO json has a list of objects named 'images'"
    assert unused in contents["notes"]


def test_a_json_of_another_split_is_not_taken(tmp_path):
    root = write_folder(tmp_path, SPLITS)
    bare = [file.split("/")[1] for file in FILES]
    for split in ("train", "valid"):
        write_coco(root / f"export_{split}.json", bare)
    assert open_dataset(root, "val").records.box_counts.tolist() == [1] * 20
    assert not open_dataset(root, "test").records.has_boxes


def test_a_json_of_other_images_is_not_used_and_said(tmp_path, caplog):
    root = write_folder(tmp_path)
    write_coco(root / "boxes.json", [f"data/export_{number}.png" for number in range(10)])
    assert not open_dataset(root, "test").records.has_boxes
    assert (
        "boxes.json is not used: 10 of its 10 images are not there: the json has such as data/" in caplog.text
    )


def test_two_jsons_with_boxes_of_a_split(tmp_path):
    root = write_folder(tmp_path)
    for name in ("one.json", "two.json"):
        write_coco(root / name, FILES)
    with pytest.raises(DataProblems, match=r"one\.json and .*two\.json have boxes of split 'test': name one"):
        open_dataset(root, "test")
    assert open_dataset(root, "test", boxes=root / "two.json").records.has_boxes


@pytest.mark.parametrize("given", [True, False], ids=["given", "found"])
@pytest.mark.parametrize("splits", [(), ("train", "test"), SPLITS], ids=["one folder", "two", "three"])
def test_boxes_of_the_test_images_alone(tmp_path, given, splits, caplog):
    root = write_folder(tmp_path / "set", splits)
    test = ids(open_dataset(root, "test"))
    boxes = write_coco((tmp_path if given else root) / "boxes.json", test)
    options = {"boxes": boxes} if given else {}
    assert open_dataset(root, "test", **options).records.box_counts.tolist() == [1] * len(test)
    val = open_dataset(root, "val", **options)
    assert not val.records.has_boxes
    said = f"boxes for 0 of the {len(val)} images of split val: the threshold is chosen without boxes"
    assert (said if given else f"it has no box for the {len(val)} images of split val") in caplog.text


def test_training_with_boxes_of_the_test_images_alone(tmp_path, capsys):
    root = write_folder(tmp_path / "set")
    write_coco(root / "boxes.json", ids(open_dataset(root, "test")))
    tiny = "{patch_size: 8, embed_dim: 16, depth: 1, num_heads: 1}"
    command = ["train", "--data", root, "--out", tmp_path / "run", "--device", "cpu", "--workers", "0"]
    command += ["--backbone", "vit_tiny_patch16_224", "--backbone-options", tiny, "--pretrained", "false"]
    command += ["--epochs", "1", "--warmup-epochs", "0", "--image-size", "16"]
    assert main([*map(str, command)]) == 0
    metrics = json.loads((tmp_path / "run" / "evaluation" / "metrics.json").read_text())
    assert (metrics["protocol"], metrics["images_with_boxes"]) == ("unboxed", 4)
    assert "gt_known" in metrics["metrics"]
    assert "boxes.json is not used: it has no box for the 2 images of split val" in capsys.readouterr().err


def test_boxes_of_some_images(tmp_path, caplog):
    root = write_folder(tmp_path, ("train", "test"))
    write_coco(root / "test.json", FILES[:5])
    test = open_dataset(root, "test")
    assert sum(test.records.box_counts) == 5
    assert (
        "has boxes for 5 of the 20 images of split test: the others count for classification" in caplog.text
    )


def test_a_deeply_nested_json(tmp_path):
    root = write_folder(tmp_path)
    (root / "annotations.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"annotations\.json: cannot read this COCO json \(it is nested too"):
        open_dataset(root, "test")


def test_polygons_are_not_kept_in_memory(tmp_path):
    """A json is read once for all splits, and what is not needed of it is dropped while it is parsed."""
    root = write_folder(tmp_path)
    content = json.loads(write_coco(root / "annotations.json", FILES).read_text())
    polygon = list(range(100_000))
    for annotation in content["annotations"]:
        annotation["segmentation"] = [[number + 0.5 for number in polygon]]
    (root / "annotations.json").write_text(json.dumps(content))
    size = (root / "annotations.json").stat().st_size
    code = (
        "import resource, sys, time\n"
        "from scm_fast.data import open_dataset\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for split in ('train', 'val', 'test'): open_dataset(sys.argv[1], split)\n"
        "print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4 * size, "bytes, text and one polygon; all of them take eight times the file"


def test_listing_gives_reasons(tmp_path):
    write_image(tmp_path / "a.png")
    (tmp_path / "b.txt").touch()
    (tmp_path / "c.png").symlink_to(tmp_path / "a.png")
    listing = list_images(Path(tmp_path))
    assert listing.paths == ["a.png"]
    assert dict(listing.reasons()) == {
        "b.txt": "no image file, by its suffix",
        "c.png": "a link to what is listed already",
    }


# --- one class ------------------------------------------------------------------------------------------


def test_one_class_gets_the_untrained_attention(tmp_path, capsys, monkeypatch):
    """One class, my dog: nothing is trained, and that is said; boxes can be found all the same."""
    for number in range(20):
        write_image(tmp_path / "set" / "dog" / f"{number}.png", seed=number)
    small = "{depth: 2, embed_dim: 48, num_heads: 3}"
    torch.manual_seed(0)
    network = create_model("deit_tiny_patch16_224", 3, "cls", backbone_options=yaml.safe_load(small))
    save_model(network, tmp_path / "network")
    out = tmp_path / "run"
    common = [
        "train",
        "--data",
        tmp_path / "set",
        "--out",
        out,
        "--device",
        "cpu",
        "--backbone-options",
        small,
    ]
    common += ["--backbone", "deit_tiny_patch16_224", "--workers", "0", "--epochs", "1"]
    assert check_data(capsys, tmp_path / "set")[0] == 0
    assert main([*map(str, common), "--warmup-epochs", "0", "--pretrained", str(tmp_path / "network")]) == 0
    printed = capsys.readouterr()
    assert (
        "has one class, 'dog', and there is nothing to tell it from: labels cannot teach where" in printed.err
    )
    assert f"such as {tmp_path / 'set' / 'other'}" in printed.err
    kept = load_model(out / "last")
    assert (kept.config.method, kept.config.class_names) == ("cls", ["dog"])
    before, after = network.backbone.state_dict(), kept.backbone.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((out / "evaluation" / "metrics.json").read_text())["protocol"] == "unboxed"
    photo = tmp_path / "set" / "dog" / "0.png"
    assert (
        main(["predict", str(photo), "--checkpoint", str(out / "last"), "--out", str(tmp_path / "found")])
        == 0
    )
    assert json.loads((tmp_path / "found/predictions.json").read_text())[0]["classes"][0]["name"] == "dog"
    assert main([*map(str, common), "--warmup-epochs", "0", "--pretrained", "false"]) == 2
    assert "only a pretrained network's attention could be kept" in capsys.readouterr().err
