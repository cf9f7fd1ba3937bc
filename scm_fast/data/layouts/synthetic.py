"""The built-in sets: nothing to download, drawn from a seed, the same bytes on every machine.

`synthetic` is the set to localise on. Each image shows one creature among two or three other bodies. Its
plumage is a coarse texture of two faint hues, and a small badge on it is a disc of the one in a ring of the
other, both saturated; the pair is the class. The other bodies have the same textures in hues that no creature
has, and no badge. The box covers the whole creature. So

- what catches the eye is not the object alone: every body stands out from the background as the creature does;
- the class is clearest in a part that is far smaller than the object: the partial activation problem, in
  miniature;
- labels do say something about the whole object: if the badge alone had to do with them, no method that is
  trained on them could know that the body belongs to it;
- neighbouring patches differ within a body, which has parts as a bird has, and are alike in the background.

`synthetic-pretraining` stands for the data that published weights were trained on: the same kind of pictures
with other classes. Each shows one body without a badge, of one hue, a little stronger; hue and texture are its
class.

Bodies vary in size, aspect and place; images in which they would sit in the middle and fill the frame are no
more likely than others, so a fixed box in the middle scores low.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...progress import tqdm
from ..drawing import (
    SIZE,
    TEXTURES,
    Colour,
    RandomStream,
    box_around,
    draw_background,
    draw_badge,
    draw_body,
    finished,
    tint_of,
)
from ..records import Record, Split
from .registry import Layout, register

SPLITS = ("train", "val", "test")
SEED = 2022

COLOURS: dict[str, Colour] = {
    "red": (225, 30, 35),
    "green": (25, 200, 50),
    "blue": (35, 60, 235),
    "yellow": (240, 215, 20),
    "magenta": (215, 40, 205),
    "cyan": (25, 205, 215),
}
PLUMAGE = ("red", "green", "blue", "yellow")
STRANGE = ("magenta", "cyan")  # hues of bodies that are no creatures
PAIRS = [(disc, ring) for disc in PLUMAGE for ring in PLUMAGE if disc != ring]
CLASS_NAMES = [f"{disc} in {ring}" for disc, ring in PAIRS]
KINDS = [(hue, texture) for hue in (*PLUMAGE, *STRANGE) for texture in range(len(TEXTURES))]

Box = tuple[float, float, float, float]
# Semi-axes of bodies: (lengths, breadths), each from the first number to below the second.
LARGE, SMALL = ((20, 43), (12, 25)), ((14, 34), (9, 20))


def draw_image(random: RandomStream, label: int) -> tuple[np.ndarray, Box]:
    """(image (SIZE, SIZE, 3) uint8, box of the creature) for a class."""
    grey = random.integer(50, 206)
    image = draw_background(random, grey)
    for _ in range(random.integer(2, 4)):
        hues = [STRANGE[random.integer(0, len(STRANGE))] for _ in range(2)]
        draw_body(random, image, grey, _plumage(*hues), random.integer(0, len(TEXTURES)), *SMALL)
    # The creature comes last: nothing covers it.
    disc, ring = PAIRS[label]
    texture = random.integer(0, len(TEXTURES))
    body, place = draw_body(random, image, grey, _plumage(disc, ring), texture, *LARGE)
    badge = draw_badge(random, image, place, COLOURS[disc], COLOURS[ring])
    return finished(random, image), box_around(body | badge)


def draw_pretraining_image(random: RandomStream, label: int) -> tuple[np.ndarray, Box]:
    """(image (SIZE, SIZE, 3) uint8, box of the body) for a kind of body."""
    hue, texture = KINDS[label]
    grey = random.integer(50, 206)
    image = draw_background(random, grey)
    size = (SMALL, LARGE)[random.integer(0, 2)]
    tint = tint_of(COLOURS[hue], 5)
    body, _ = draw_body(random, image, grey, (tint, tint), texture, *size)
    return finished(random, image), box_around(body)


def _plumage(light: str, dark: str) -> tuple[np.ndarray, np.ndarray]:
    """Tints (3,) of the light and the dark parts of a body."""
    return tint_of(COLOURS[light], 4), tint_of(COLOURS[dark], 4)


@dataclass(frozen=True)
class DrawnSet:
    """A set of pictures: its classes, how many images a split has, and how one of a class is drawn.

    number: of the set; together with the split and the image it makes the key of the random numbers.
    """

    number: int
    class_names: list[str]
    counts: dict[str, int]
    draw: Callable[[RandomStream, int], tuple[np.ndarray, Box]]


SETS = {
    "synthetic": DrawnSet(0, CLASS_NAMES, {"train": 3600, "val": 300, "test": 1000}, draw_image),
    "synthetic-pretraining": DrawnSet(
        1,
        [f"{hue} {TEXTURES[texture]}" for hue, texture in KINDS],
        {"train": 2000, "val": 200, "test": 200},
        draw_pretraining_image,
    ),
}


def read(root: Path, name: str) -> Split:
    return draw_split(str(root), name)


def draw_split(which: str, name: str, count: int | None = None, seed: int = SEED) -> Split:
    """`count` images (SIZE, SIZE) of one of `SETS`; labels go round the classes."""
    drawn = SETS[which]
    count = drawn.counts[name] if count is None else count
    images = np.empty((count, SIZE, SIZE, 3), np.uint8)
    records = []
    for index in tqdm(range(count), desc=f"drawing {name} images", unit="image", disable=None, leave=False):
        label = index % len(drawn.class_names)
        random = RandomStream(seed, drawn.number, SPLITS.index(name), index)
        images[index], box = drawn.draw(random, label)
        records.append(Record(f"{name}/{index:05d}", label, (SIZE, SIZE), (box,)))
    return Split("synthetic", name, None, drawn.class_names, records, box_source=Path(which), pixels=images)


register(
    Layout(
        name="synthetic",
        summary="nothing on disk: the built-in set",
        expects="the word synthetic instead of a folder",
        find_root=lambda root: root if str(root) in SETS else None,
        splits=lambda root: SPLITS,
        read=read,
        order=100,
        on_disk=False,
    )
)
