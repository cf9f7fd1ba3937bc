"""A CUB folder of CUB's training images alone: in every class each sixth of them is a test image.

    python bench/make_development_split.py CUB_200_2011 CUB_development

What is tried on it has never seen CUB's test images. Of CUB's 5,994 training images 5,000 stay and 994 are to
test on. The images are linked, not copied. With --first 3 the third, ninth, ... of a class are the test images:
what was chosen by those of one division is tried on those of another.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

EVERY = 6


def read(path: Path) -> dict[str, str]:
    """The rest of each line by its image id."""
    return dict(line.split(maxsplit=1) for line in path.read_text().splitlines())


def make_split(cub: Path, out: Path, first: int = EVERY) -> Counter[str]:
    """Write the folder; gives how many images are to train ("1") and to test ("0") on.

    first: the number of the first test image of a class.
    """
    tables = {name: read(cub / f"{name}.txt") for name in ("images", "image_class_labels", "bounding_boxes")}
    kept = [image for image, train in read(cub / "train_test_split.txt").items() if train.strip() == "1"]
    seen: Counter[str] = Counter()
    split = {}
    for image in kept:
        label = tables["image_class_labels"][image]
        seen[label] += 1
        split[image] = "0" if seen[label] % EVERY == first % EVERY else "1"
    out.mkdir(parents=True)
    for name, table in {**tables, "train_test_split": split}.items():
        (out / f"{name}.txt").write_text("".join(f"{image} {table[image]}\n" for image in kept))
    (out / "classes.txt").write_text((cub / "classes.txt").read_text())
    (out / "images").symlink_to((cub / "images").resolve())
    return Counter(split.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cub", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--first", type=int, default=EVERY, choices=range(1, EVERY + 1), help="test image of a class (6)"
    )
    options = parser.parse_args()
    counts = make_split(options.cub, options.out, options.first)
    print(f"{options.out}: {counts['1']} images to train on, {counts['0']} to test on")
