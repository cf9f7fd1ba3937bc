"""Lay the photos of docs/photos and what `scm-fast predict` drew over them side by side.

    scm-fast predict docs/photos --model deit_tiny_patch16_224 --out found --overlay
    python bench/photo_pictures.py found --out docs/images

first_boxes.jpg shows two photos, each beside its map and box. gallery.jpg shows the maps and boxes of all photos.
Licences of the photos are in docs/photos/LICENSES.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

PHOTOS = Path(__file__).parents[1] / "docs" / "photos"
FIRST = ("coffee", "raccoon")
GALLERY = ("coffee", "raccoon", "flower", "astronaut", "cat", "rocket")
GAP = 8  # pixels


def row(pictures: Sequence[Image.Image], height: int) -> Image.Image:
    """Put pictures of one height beside each other."""
    scaled = [
        picture.resize((round(picture.width * height / picture.height), height), Image.Resampling.LANCZOS)
        for picture in pictures
    ]
    whole = Image.new("RGB", (sum(p.width for p in scaled) + GAP * (len(scaled) - 1), height), "white")
    left = 0
    for picture in scaled:
        whole.paste(picture, (left, 0))
        left += picture.width + GAP
    return whole


def column(rows: Sequence[Image.Image], width: int) -> Image.Image:
    """Put rows below each other, all as wide."""
    scaled = [
        each.resize((width, round(each.height * width / each.width)), Image.Resampling.LANCZOS)
        for each in rows
    ]
    whole = Image.new("RGB", (width, sum(r.height for r in scaled) + GAP * (len(scaled) - 1)), "white")
    top = 0
    for each in scaled:
        whole.paste(each, (0, top))
        top += each.height + GAP
    return whole


def draw(found: Path, out: Path) -> list[Path]:
    def photo(name: str) -> Image.Image:
        return Image.open(PHOTOS / f"{name}.jpg").convert("RGB")

    def overlay(name: str) -> Image.Image:
        return Image.open(found / "overlays" / f"{name}.jpg").convert("RGB")

    out.mkdir(parents=True, exist_ok=True)
    first = column([row([photo(name), overlay(name)], 400) for name in FIRST], 1000)
    overlays = [overlay(name) for name in GALLERY]
    gallery = column([row(overlays[:3], 300), row(overlays[3:], 300)], 1200)
    written = [out / "first_boxes.jpg", out / "gallery.jpg"]
    for path, picture in zip(written, (first, gallery), strict=True):
        picture.save(path, quality=88)
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("found", type=Path, help="the folder that predict wrote")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the pictures go")
    args = parser.parse_args()
    print(*draw(args.found, args.out), sep="\n")
