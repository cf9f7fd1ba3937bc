"""Exports of `predict`, read by the tools that people use: images, classes and boxes are there.

Two readers are not here. datumaro wants an older Pillow than the tested one, and brings pandas and pyarrow.
ultralytics installs opencv-python over the files of opencv-python-headless: its rules are written down below.
"""

import contextlib
import io
import json
import os
import shutil
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
import supervision
import yaml
from colour_model import colour_model
from PIL import Image
from pycocotools.coco import COCO

from scm_fast import save_model
from scm_fast.cli import main
from scm_fast.data import open_dataset
from scm_fast.formats import FORMATS, Export, Finding
from scm_fast.formats.finding import unique_names

CLASSES = ["crane", "owl: snowy", "crane"]
# Stems meet in one folder, in two, and where a folder's name becomes part of a file's.
PHOTOS = ("a.jpg", "a.png", "sub/a.jpg", "sub_a.png", "images/b c.jpg", "moving.gif", "d'é.PNG")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Pictures of several sizes, each with a coloured square or two; one is turned by its EXIF tag."""
    folder = tmp_path_factory.mktemp("set") / "my photos"
    for number, name in enumerate(PHOTOS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        picture = Image.new("RGB", (448, 300 + number))
        colour = tuple(255 * (channel == number % 3) for channel in range(3))
        picture.paste(colour, (32, 32, 200, 150 + number))
        if number % 2:
            picture.paste(colour, (304, 200, 400, 290))
        exif = Image.Exif()
        if name == "a.jpg":
            exif[0x0112] = 6
        picture.save(folder / name, **({"exif": exif} if name.endswith("jpg") else {}))
    return folder


@pytest.fixture(scope="module")
def found(photos, tmp_path_factory):
    """The output folder of one command that writes everything."""
    out = tmp_path_factory.mktemp("found")
    words = ["predict", photos, "--checkpoint", save_model(colour_model(CLASSES), out / "model")]
    words += ["--out", out / "out", "--format", ",".join(FORMATS), "--crops", "--threshold", "0.5"]
    assert main([*map(str, words), "--max-boxes", "3"]) == 0
    return out / "out"


@pytest.fixture(scope="module")
def truth(found, photos):
    """Path below the image folder -> what predictions.json says about it."""
    entries = json.loads((found / "predictions.json").read_text())
    assert len(entries) == len(PHOTOS)
    assert sum(len(entry["boxes"]) for entry in entries) > len(PHOTOS)
    return {str(Path(entry["image"]).relative_to(photos)): entry for entry in entries}


def corners(entry):
    return np.array([found["box"] for found in entry["boxes"]])


def label(entry):
    return entry["classes"][0]["index"]


NAMES = ["crane", "owl: snowy", "crane 2"]
PLAIN_NAMES = ["crane", "owl  snowy", "crane 2"]  # for files in which a colon ends a field


def test_pycocotools_reads_coco(found, photos, truth):
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(found / "predictions.coco.json"))
    assert coco.getCatIds() == [1, 2, 3], "CVAT drops category 0"
    assert [category["name"] for category in coco.loadCats(coco.getCatIds())] == NAMES
    assert coco.dataset["info"]["description"]
    assert coco.dataset["licenses"] == []
    assert {image["file_name"] for image in coco.imgs.values()} == set(truth)
    for image in coco.imgs.values():
        entry = truth[image["file_name"]]
        annotations = coco.loadAnns(coco.getAnnIds(image["id"]))
        assert len(annotations) == len(entry["boxes"])
        for annotation, (x0, y0, x1, y1) in zip(annotations, corners(entry), strict=True):
            assert annotation["bbox"] == pytest.approx([x0, y0, x1 - x0, y1 - y0], abs=0.02)
            assert annotation["area"] == pytest.approx((x1 - x0) * (y1 - y0), rel=1e-3)
            assert annotation["segmentation"] == [pytest.approx([x0, y0, x1, y0, x1, y1, x0, y1])]
            assert coco.annToMask(annotation).sum() == pytest.approx(annotation["area"], rel=0.1)
            assert annotation["category_id"] == label(entry) + 1


def agrees(dataset, truth, name_of, names, pixels):
    """Check that a data set of supervision has every image, with the classes and boxes of predictions.json."""
    assert len(dataset) == len(truth)
    for path, picture, detections in dataset:
        entry = truth[name_of(path)]
        assert picture.shape[:2] == (entry["height"], entry["width"])
        assert np.abs(detections.xyxy - corners(entry)).max() <= pixels
        assert {dataset.classes[number] for number in detections.class_id} == {names[label(entry)]}


def test_supervision_reads_coco(found, photos, truth):
    dataset = supervision.DetectionDataset.from_coco(str(photos), str(found / "predictions.coco.json"))
    truth = {name: entry for name, entry in truth.items() if not name.endswith(".gif")}
    keep = [path for path in dataset.image_paths if not path.endswith(".gif")]  # OpenCV reads none
    dataset = supervision.DetectionDataset(
        dataset.classes, keep, {path: dataset.annotations[path] for path in keep}
    )
    agrees(dataset, truth, lambda path: str(Path(path).relative_to(photos.resolve())), NAMES, 1.01)


def by_content(folder, photos):
    """File in a folder -> path of the photo that it is."""
    original = {(photos / name).read_bytes(): name for name in PHOTOS}
    return {str(file): original.get(file.read_bytes(), "moving.gif") for file in folder.iterdir()}


def test_supervision_reads_yolo(found, photos, truth):
    folder = found / "yolo"
    dataset = supervision.DetectionDataset.from_yolo(
        str(folder / "images"), str(folder / "labels"), str(folder / "data.yaml")
    )
    names = by_content(folder / "images", photos)
    agrees(dataset, truth, names.get, PLAIN_NAMES, 0.01)


def ultralytics_labels(data_yaml):
    """Image -> lines of its label, as check_det_dataset and img2label_paths of Ultralytics find them."""
    content = yaml.safe_load(data_yaml.read_text())
    assert {"train", "val", "names"} <= content.keys()
    root = Path(content.get("path", data_yaml.parent))
    found = {}
    for image in sorted((root / content["train"]).rglob("*.*")):
        assert image.suffix[1:].lower() in {"bmp", "jpeg", "jpg", "mpo", "png", "tif", "tiff", "webp", "pfm"}
        before, after = str(image).rsplit(f"{os.sep}images{os.sep}", 1)
        label_file = Path(f"{before}{os.sep}labels{os.sep}{after}".rsplit(".", 1)[0] + ".txt")
        found[str(image)] = [[float(value) for value in line.split()] for line in label_file.open()]
    return content["names"], found


def test_yolo_keeps_the_rules_of_ultralytics(found, photos, truth, tmp_path):
    """Also after the folder has been moved."""
    moved = Path(shutil.copytree(found / "yolo", tmp_path / "images" / "moved"))
    names, lines = ultralytics_labels(moved / "data.yaml")
    assert names == dict(enumerate(PLAIN_NAMES))
    photo_of = by_content(moved / "images", photos)
    assert sorted(photo_of[image] for image in lines) == sorted(PHOTOS)
    for image, rows in lines.items():
        entry = truth[photo_of[image]]
        assert len(rows) == len(entry["boxes"])
        for (number, x, y, width, height), box in zip(rows, corners(entry), strict=True):
            assert number == label(entry)
            assert 0 <= min(x, y, width, height) <= max(x, y, width, height) <= 1
            sides = np.array([entry["width"], entry["height"]] * 2)
            scaled = np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2]) * sides
            assert scaled == pytest.approx(box, abs=0.02)


def test_supervision_reads_voc(found, photos, truth):
    folder = found / "voc"
    dataset = supervision.DetectionDataset.from_pascal_voc(
        str(folder / "JPEGImages"), str(folder / "Annotations")
    )
    agrees(dataset, truth, by_content(folder / "JPEGImages", photos).get, PLAIN_NAMES, 1.01)


def test_voc_has_what_its_readers_look_for(found, photos, truth):
    folder = found / "voc"
    stems = (folder / "ImageSets/Main/default.txt").read_text().split()
    assert sorted(stems) == sorted(file.stem for file in (folder / "Annotations").iterdir())
    labels = [
        line.split(":") for line in (folder / "labelmap.txt").read_text().splitlines() if line[0] != "#"
    ]
    assert [fields[0] for fields in labels] == ["background", *PLAIN_NAMES]
    assert {len(fields) for fields in labels} == {4}
    for stem in stems:
        content = ElementTree.parse(folder / "Annotations" / f"{stem}.xml")
        image = folder / "JPEGImages" / content.findtext("filename")
        assert image.stem == stem
        entry = truth[by_content(image.parent, photos)[str(image)]]
        assert content.findtext("size/width") == str(entry["width"])
        for box in content.iter("bndbox"):
            x0, y0, x1, y1 = (int(box.findtext(name)) for name in ("xmin", "ymin", "xmax", "ymax"))
            assert 1 <= x0 <= x1 <= entry["width"]
            assert 1 <= y0 <= y1 <= entry["height"]


def test_label_studio_tasks(found, photos, truth):
    """Images are found below the document root, which is the folder around the photos."""
    interface = ElementTree.parse(found / "label_studio.xml").getroot()
    (image_tag,), (labels,) = interface.findall("Image"), interface.findall("RectangleLabels")
    assert [tag.get("value") for tag in labels] == NAMES
    tasks = json.loads((found / "label_studio.json").read_text())
    assert len(tasks) == len(PHOTOS)
    for task in tasks:
        url, _, path = task["data"][image_tag.get("value")[1:]].partition("?d=")
        assert url == "/data/local-files/"
        assert " " not in path
        file = photos.parent / unquote(path)
        entry = truth[str(file.relative_to(photos))]
        (prediction,) = task["predictions"]
        assert 0 < prediction["score"] <= 1
        results = prediction["result"]
        assert len({result["id"] for result in results}) == len(results) == len(entry["boxes"])
        for result, (x0, y0, x1, y1) in zip(results, corners(entry), strict=True):
            assert (result["from_name"], result["to_name"]) == (labels.get("name"), image_tag.get("name"))
            assert labels.get("toName") == image_tag.get("name")
            assert (result["type"], result["value"]["rectanglelabels"]) == (
                "rectanglelabels",
                [NAMES[label(entry)]],
            )
            width, height = result["original_width"], result["original_height"]
            assert (width, height) == (entry["width"], entry["height"])
            value = result["value"]
            assert value["x"] == pytest.approx(100 * x0 / width, abs=0.02)
            assert value["y"] + value["height"] == pytest.approx(100 * y1 / height, abs=0.02)
            assert value["x"] + value["width"] == pytest.approx(100 * x1 / width, abs=0.02)
            assert value["y"] == pytest.approx(100 * y0 / height, abs=0.02)


def test_crops_are_what_the_boxes_surround(found, truth):
    names = {"a.jpg": "a", "a.png": "a-2", "d'é.PNG": "d'é", "moving.gif": "moving", "sub_a.png": "sub_a"}
    names |= {"sub/a.jpg": "sub/a", "images/b c.jpg": "images/b c"}
    crops = {str(path.relative_to(found / "crops")) for path in (found / "crops").rglob("*.jpg")}
    expected = set()
    for photo, entry in truth.items():
        for number, (x0, y0, x1, y1) in enumerate(corners(entry), 1):
            expected.add(name := f"{names[photo]}_{number}.jpg")
            with Image.open(found / "crops" / name) as crop:
                assert crop.size == (np.ceil(x1) - np.floor(x0), np.ceil(y1) - np.floor(y0))
    assert crops == expected


def test_a_folder_that_is_ours_is_replaced_and_another_is_not(photos, tmp_path, capsys):
    """Images of an earlier command would have no labels here."""
    checkpoint = save_model(colour_model(CLASSES), tmp_path / "model")

    def predict(image, out):
        words = [
            image,
            "--checkpoint",
            checkpoint,
            "--out",
            out,
            "--format",
            "yolo,voc",
            "--threshold",
            "0.5",
        ]
        return main(["predict", *map(str, words)])

    for name in ("a.png", "sub_a.png"):
        assert predict(photos / name, tmp_path / "out") == 0
    assert os.listdir(tmp_path / "out/yolo/images") == ["sub_a.png"]
    assert os.listdir(tmp_path / "out/voc/JPEGImages") == ["sub_a.png"]
    assert (photos / "a.png").is_file()

    own = tmp_path / "other/yolo/mine.txt"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    assert predict(photos / "a.png", tmp_path / "other") == 2
    assert f"{own.parent}: scm-fast predict did not write this" in capsys.readouterr().err
    assert own.read_text() == "mine"


def test_images_in_exports_are_not_predicted_on(found, photos, tmp_path, capsys):
    folder = Path(shutil.copytree(found, tmp_path / "photos"))
    shutil.copy(photos / "a.png", folder)
    words = ["predict", folder, "--checkpoint", found.parent / "model", "--out", tmp_path / "out"]
    assert main([str(word) for word in words]) == 0
    assert len(json.loads((tmp_path / "out/predictions.json").read_text())) == 1
    assert "results of scm-fast predict" in capsys.readouterr().err


def test_boxes_of_another_folder_are_not_taken_for_pseudo_boxes(tmp_path, found):
    """`cat/0.png` of train/ and of val/ have one name below their own folders."""
    for split in ("train", "val", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            Image.new("RGB", (60, 40), (200, 9, 9)).save(tmp_path / "data" / split / name / "0.png")
    for split in ("train", "val"):
        words = ["predict", tmp_path / "data" / split, "--checkpoint", found.parent / "model"]
        words += ["--out", tmp_path / split, "--format", "coco", "--threshold", "0.5"]
        assert main([str(word) for word in words]) == 0
    boxes = tmp_path / "val" / "predictions.coco.json"
    dataset = open_dataset(tmp_path / "data", "val", pseudo_boxes=boxes)
    assert all(record.boxes for record in dataset.records)
    with pytest.raises(Exception, match="none of its images is in split 'val'"):
        open_dataset(tmp_path / "data", "val", pseudo_boxes=tmp_path / "train" / "predictions.coco.json")


def test_wrong_formats_are_named(photos, tmp_path, capsys):
    words = ["predict", photos, "--checkpoint", "none", "--out", tmp_path, "--format", "coco,cvat"]
    with pytest.raises(SystemExit, match="2"):
        main([str(word) for word in words])
    assert "'cvat' is not one of json, coco, csv, yolo, voc, labelstudio" in capsys.readouterr().err


def test_names_of_classes_are_unique():
    assert unique_names(["a", "b", "a", "a", "a 2"]) == ["a", "b", "a 3", "a 4", "a 2"]


@pytest.mark.parametrize("form", FORMATS)
def test_hostile_names_and_an_image_without_a_box(form, tmp_path):
    """Names of files and classes that mean something in a format, and a path longer than a file's name may be."""
    deep = tmp_path.joinpath(*["deep" * 20] * 4)
    deep.mkdir(parents=True)
    names = [
        "<&>\"'.png",
        "line\nbreak.png",
        "../up.png".replace("/", "\\"),
        f"{deep.relative_to(tmp_path)}/x.png",
    ]
    findings = []
    for name in names:
        Image.new("RGB", (20, 10)).save(tmp_path / name)
        classes = [{"index": 1, "name": "b", "score": 0.5}]
        findings.append(Finding(name[:-4], str(tmp_path / name), (20, 10), classes, [((1, 2, 11, 8), 0.5)]))
    Image.new("RGB", (20, 10)).save(tmp_path / "nothing.png")
    findings.append(Finding("nothing", str(tmp_path / "nothing.png"), (20, 10), classes, [], "no bird"))
    out = tmp_path / "out"
    out.mkdir()
    written = FORMATS[form](Export(out, findings, ["</name>", "a\nb: 'c' \"d\" #", "null"], str(tmp_path)))
    assert written.exists()
    if form == "yolo":
        content = yaml.safe_load((out / "yolo/data.yaml").read_text())
        assert content["names"] == {0: "</name>", 1: "a b  'c' \"d\" #", 2: "null"}
        assert len(list((out / "yolo/images").iterdir())) == len(list((out / "yolo/labels").iterdir())) == 5
        assert (out / "yolo/labels/nothing.txt").read_text() == "", "a background image"
    if form == "voc":
        for file in (out / "voc/Annotations").iterdir():
            name = ElementTree.parse(file).findtext("object/name")
            assert name == (None if file.stem == "nothing" else "a b  'c' \"d\" #")
    if form == "labelstudio":
        tags = ElementTree.parse(out / "label_studio.xml").getroot().find("RectangleLabels")
        assert tags[0].get("value") == "</name>"
