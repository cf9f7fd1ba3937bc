"""Small data sets on disk, one writer per layout. Used by several test modules."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

WNIDS = ("n01440764", "n01443537", "n02102040")


def write_image(path: Path, size: tuple[int, int] = (60, 40), seed: int = 0) -> Path:
    """A smooth random picture of (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize(size, Image.BICUBIC).save(path)
    return path


def truncate(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 4 // 5])
    return path


def write_lines(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def write_cub(root: Path, classes: int = 3, per_class: int = 12) -> Path:
    """12 images of 60 x 40 per class, of which every third is test; boxes 5.5 4.0 30.0 20.5."""
    names = [f"{c + 1:03d}.Bird_{c}" for c in range(classes)]
    images = [(c, f"{names[c]}/Bird_{c}_{i:04d}.jpg") for c in range(classes) for i in range(per_class)]
    for number, (_, path) in enumerate(images):
        write_image(root / "images" / path, seed=number)
    ids = range(1, len(images) + 1)
    write_lines(root / "images.txt", *(f"{i} {images[i - 1][1]}" for i in ids))
    write_lines(root / "image_class_labels.txt", *(f"{i} {images[i - 1][0] + 1}" for i in ids))
    write_lines(root / "train_test_split.txt", *(f"{i} {int(i % 3 != 0)}" for i in ids))
    write_lines(root / "bounding_boxes.txt", *(f"{i} 5.5 4.0 30.0 20.5" for i in ids))
    write_lines(root / "classes.txt", *(f"{c + 1} {names[c]}" for c in range(classes)))
    return root


def write_wsol(root: Path, splits: tuple[str, ...] = ("train", "val", "test"), masks: bool = False) -> Path:
    """Metadata at root/metadata/SET, images at root/dataset/SET: 2 classes, 4 images of 60 x 40 per split."""
    metadata, dataset = root / "metadata" / "SET", root / "dataset" / "SET"
    for split in splits:
        ids = [f"{split}/{i}.jpg" for i in range(4)]
        for i, name in enumerate(ids):
            write_image(dataset / name, seed=i)
        write_lines(metadata / split / "image_ids.txt", *ids)
        write_lines(metadata / split / "class_labels.txt", *(f"{name},{i % 2}" for i, name in enumerate(ids)))
        write_lines(metadata / split / "image_sizes.txt", *(f"{name},60,40" for name in ids))
        if split == "train":
            continue
        if masks:
            rows = []
            for name in ids:
                stem = name.removesuffix(".jpg")
                files = (f"{stem}_m0.png", f"{stem}_m1.png", f"{stem}_ignore.png")
                for file in files:
                    write_image(dataset / file)
                rows += [f"{name},{files[0]},{files[2]}", f"{name},{files[1]},"]
        else:
            rows = [f"{name},35,20,55,38" for name in ids] + [f"{ids[0]},0,0,10,10"]
        write_lines(metadata / split / "localization.txt", *rows)
    return metadata


def write_ilsvrc(root: Path, boxes: str | None, *, flat: bool = True, train_boxes: bool = False) -> Path:
    """3 wnids with 10 training images each; 6 val images with boxes from "xml", "csv", "text" or None."""
    for wnid in WNIDS:
        for i in range(10):
            write_image(root / "train" / wnid / f"{wnid}_{i}.JPEG", seed=i)
            if train_boxes and i < 5:
                write_xml(root / "Annotations" / "CLS-LOC" / "train" / wnid / f"{wnid}_{i}.xml", wnid)
    stems = [f"ILSVRC2012_val_{i + 1:08d}" for i in range(6)]
    wnid_of = {stem: WNIDS[i % 3] for i, stem in enumerate(stems)}
    for stem in stems:
        write_image(root / "val" / ("" if flat else wnid_of[stem]) / f"{stem}.JPEG")
        if boxes == "xml":
            write_xml(root / "Annotations" / "CLS-LOC" / "val" / f"{stem}.xml", wnid_of[stem], 2)
    if boxes == "csv":
        rows = [f"{stem},{wnid_of[stem]} 5 4 35 24 {wnid_of[stem]} 6 5 36 25 " for stem in stems]
        write_lines(root / "LOC_val_solution.csv", "ImageId,PredictionString", *rows)
    if boxes == "text":
        names = [f"val/{stem}.JPEG" for stem in stems]
        rows = [f"{name},{x},{x - 1},{x + 30},{x + 19}" for name in names for x in (5, 6)]
        write_lines(root / "localization.txt", *rows)
        write_lines(root / "class_labels.txt", *(f"{name},{i % 3}" for i, name in enumerate(names)))
        write_lines(root / "image_sizes.txt", *(f"{name},60,40" for name in names))
    return root


def write_xml(path: Path, wnid: str, objects: int = 1) -> Path:
    boxes = "".join(
        f"<object><name>{wnid}</name><bndbox><xmin>{5 + i}</xmin><ymin>{4 + i}</ymin>"
        f"<xmax>{35 + i}</xmax><ymax>{24 + i}</ymax></bndbox></object>"
        for i in range(objects)
    )
    size = "<size><width>60</width><height>40</height><depth>3</depth></size>"
    return write_lines(path, f"<annotation>{size}{boxes}</annotation>")


def write_folder(root: Path, splits: tuple[str, ...] = (), per_class: int = 10) -> Path:
    """Classes cat and dog, with or without split folders; no boxes."""
    for split in splits or ("",):
        for name in ("cat", "dog"):
            for i in range(per_class):
                write_image(root / split / name / f"{name}_{i}.png", seed=i)
    return root


def write_coco(path: Path, files: list[str], box: tuple[float, ...] = (5, 4, 30, 20), **image: int) -> Path:
    """One box of the category that the file's name starts with, for each file."""
    categories = [{"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}]
    images = [
        {"id": i, "file_name": file, "width": 60, "height": 40, **image} for i, file in enumerate(files)
    ]
    annotations = [
        {"id": 100 + i, "image_id": i, "category_id": 7 if "cat_" in file else 9, "bbox": list(box)}
        for i, file in enumerate(files)
    ]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path
