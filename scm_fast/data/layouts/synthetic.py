"""The built-in data set: nothing to download, drawn from a seed, the same bytes on every machine.

Each image shows one creature on a cluttered background. A small badge on it, a disc of one saturated colour
within a ring of another, decides the class. Shape and texture of the body (three overlapping ellipses with
stripes, checks or spots in muted colours) are drawn alike for all classes; only a faint tint, the disc's,
narrows them down to three, as a bird's plumage does. The box covers the whole creature. So a classifier needs
to look at the badge alone, and what it looks at is far smaller than the object: the partial activation
problem, in miniature. Without the tint labels would say nothing about the body, and no method that is trained
on them could know that it belongs to the object.

Creatures vary in size, aspect and place; images in which they would sit in the middle and fill the frame
are no more likely than others, so a fixed box in the middle scores low.

Only integer arithmetic is used: no libm, no BLAS, no library random numbers, whose results may differ
between machines and versions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tqdm import tqdm

from ..records import Record, Split
from .registry import Layout, register

SIZE = 96  # pixels, width and height
SPLITS = ("train", "val", "test")
COUNTS = {"train": 4000, "val": 500, "test": 1000}
SEED = 2022
MARGIN = 18  # between the middle of a creature and the frame
BADGE_MARGIN = 9  # between the middle of a badge and the frame, so that every badge is whole

BADGE_COLOURS = {
    "red": (225, 30, 35),
    "green": (25, 200, 50),
    "blue": (35, 60, 235),
    "yellow": (240, 215, 20),
}
CLASS_NAMES = [f"{disc} in {ring}" for disc in BADGE_COLOURS for ring in BADGE_COLOURS if disc != ring]

# cos and sin of 16 directions, times 1024, as integers.
_COSINES = (1024, 946, 724, 392, 0, -392, -724, -946, -1024, -946, -724, -392, 0, 392, 724, 946)
_SINES = _COSINES[12:] + _COSINES[:12]


def read(root: Path, name: str) -> Split:
    return draw_split(name)


def draw_split(name: str, count: int | None = None, seed: int = SEED) -> Split:
    """`count` images (SIZE, SIZE); labels go round the classes."""
    count = COUNTS[name] if count is None else count
    images = np.empty((count, SIZE, SIZE, 3), np.uint8)
    records = []
    for index in tqdm(range(count), desc=f"drawing {name} images", unit="image", disable=None, leave=False):
        label = index % len(CLASS_NAMES)
        random = RandomStream(seed, SPLITS.index(name), index)
        images[index], box = draw_image(random, label)
        records.append(Record(f"{name}/{index:05d}", label, (SIZE, SIZE), (box,)))
    return Split("synthetic", name, None, CLASS_NAMES, records, box_source=Path("synthetic"), pixels=images)


class RandomStream:
    """Counter-based random integers (SplitMix64): a function of the key alone, on every machine."""

    def __init__(self, *key: int) -> None:
        state = np.zeros(1, np.uint64)
        for part in key:
            state = _mix(state ^ np.uint64(part))
        self._state = state[0]
        self._position = 0
        self._drawn: list[int] = []  # in blocks: single numbers from numpy would take most of the time

    def _upper_bits(self, count: int) -> np.ndarray:
        counters = np.arange(self._position, self._position + count, dtype=np.uint64)
        self._position += count
        return (_mix(self._state + counters) >> np.uint64(32)).astype(np.int64)

    def integer(self, low: int, high: int) -> int:
        """One of low .. high - 1, by multiply-shift of 32 bits."""
        if not self._drawn:
            self._drawn = self._upper_bits(128).tolist()
        return low + (self._drawn.pop() * (high - low) >> 32)

    def integers(self, low: int, high: int, *shape: int) -> np.ndarray:
        """int64 array of such numbers."""
        count = int(np.prod(shape, dtype=np.int64))
        return (low + (self._upper_bits(count) * (high - low) >> 32)).reshape(shape)


def _mix(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def draw_image(random: RandomStream, label: int) -> tuple[np.ndarray, tuple[float, float, float, float]]:
    """(image (SIZE, SIZE, 3) uint8, box of the creature) for a class."""
    grey = random.integer(50, 206)
    image = _background(random, grey)
    occupied = np.zeros((SIZE, SIZE), bool)
    # Brighter or darker than the background by enough to stand out, with a texture of its own.
    step = random.integer(55, 85)
    body = grey + step if grey < 128 else grey - step
    badge = _draw_body(random, image, occupied, body, _tint(label))
    _draw_badge(random, image, occupied, badge, label)
    image += random.integers(-10, 11, SIZE, SIZE, 1).astype(np.int16)  # grain

    rows, columns = np.flatnonzero(occupied.any(1)), np.flatnonzero(occupied.any(0))
    box = (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1))
    return np.clip(image, 0, 255).astype(np.uint8), box


class _Window:
    """The part of the frame within (reach_x, reach_y) of a point, and the offsets from the point in it."""

    def __init__(self, x: int, y: int, reach_x: int, reach_y: int) -> None:
        rows = slice(max(y - reach_y, 0), min(y + reach_y + 1, SIZE))
        columns = slice(max(x - reach_x, 0), min(x + reach_x + 1, SIZE))
        self.frame = (rows, columns)
        self.down = (np.arange(rows.start, rows.stop) - y)[:, None]
        self.across = (np.arange(columns.start, columns.stop) - x)[None, :]

    def turned(self, direction: int) -> tuple[np.ndarray, np.ndarray]:
        """Offsets along and across one of 16 directions, in 1/16 pixel."""
        cos, sin = _COSINES[direction], _SINES[direction]
        return (self.across * cos + self.down * sin) >> 6, (self.down * cos - self.across * sin) >> 6

    def ellipse(self, half_width: int, half_height: int) -> np.ndarray:
        return (self.across * half_height) ** 2 + (self.down * half_width) ** 2 <= (
            half_width * half_height
        ) ** 2


def _muted(random: RandomStream, grey: int) -> np.ndarray:
    """A colour (3,) near a grey, far from the badges' saturated ones."""
    return np.array([grey + random.integer(-22, 23) for _ in range(3)], np.int16)


def _background(random: RandomStream, grey: int) -> np.ndarray:
    """(SIZE, SIZE, 3) int16: clouds of two muted colours under scattered rectangles and ellipses."""
    clouds = (2 * _clouds(random, 4) + _clouds(random, 9)) // 3
    first, second = _muted(random, grey - 12), _muted(random, grey + 12)
    image = first + ((second - first) * clouds[..., None] // 255).astype(np.int16)
    for _ in range(random.integer(8, 14)):
        half_width, half_height = random.integer(2, 13), random.integer(2, 13)
        window = _Window(random.integer(0, SIZE), random.integer(0, SIZE), half_width, half_height)
        colour = _muted(random, grey + random.integer(-28, 29))
        if random.integer(0, 2):
            image[window.frame] = colour
        else:
            image[window.frame][window.ellipse(half_width, half_height)] = colour
    return image


def _clouds(random: RandomStream, cells: int) -> np.ndarray:
    """(SIZE, SIZE) in 0..255: a coarse lattice of random values, bilinearly enlarged in fixed point."""
    lattice = random.integers(0, 256, cells + 1, cells + 1)
    position = np.arange(SIZE, dtype=np.int64) * cells * 256 // SIZE
    cell, fraction = position >> 8, position & 255
    rows = lattice[cell] * (256 - fraction)[:, None] + lattice[cell + 1] * fraction[:, None]
    return (rows[:, cell] * (256 - fraction) + rows[:, cell + 1] * fraction) >> 16


def _tint(label: int) -> np.ndarray:
    """(3,) to be added to the body's colours: a share of the disc's saturation."""
    disc = np.array(BADGE_COLOURS[CLASS_NAMES[label].split()[0]], np.int16)
    return (disc - disc.sum() // 3) * 2 // 9


def _draw_body(
    random: RandomStream, image: np.ndarray, occupied: np.ndarray, grey: int, tint: np.ndarray
) -> tuple[int, int]:
    """Draws a creature: an ellipse with a lobe at either end. Gives (x, y) of its badge, near one end."""
    direction = random.integer(0, 16)
    cos, sin = _COSINES[direction], _SINES[direction]
    length, breadth = random.integer(20, 43), random.integer(12, 25)  # semi-axes
    x, y = random.integer(MARGIN, SIZE - MARGIN), random.integer(MARGIN, SIZE - MARGIN)

    window = _Window(x, y, length + breadth, length + breadth)
    along, across = window.turned(direction)
    mask = np.zeros(along.shape, bool)
    for end, share in ((0, 7), (-1, random.integer(5, 8)), (1, random.integer(5, 8))):  # tenths of the length
        a = length * share // 10
        b = breadth * (10 if end == 0 else random.integer(6, 11)) // 10
        middle = end * (length - a) * 16
        mask |= ((along - middle) * b) ** 2 + (across * a) ** 2 <= (16 * a * b) ** 2
    light, dark = _muted(random, grey + 14) + tint, _muted(random, grey - 14) + tint
    texture = _texture(random, window)
    image[window.frame][mask] = np.where(texture[mask][:, None], light, dark)
    occupied[window.frame] |= mask
    offset = length * random.integer(50, 80) // 100
    badge = (x + offset * cos // 1024, y + offset * sin // 1024)
    if (
        min(badge) < BADGE_MARGIN or max(badge) >= SIZE - BADGE_MARGIN
    ):  # a body may leave the frame, its badge not
        badge = (x - offset * cos // 1024, y - offset * sin // 1024)
    low, high = BADGE_MARGIN, SIZE - BADGE_MARGIN - 1
    return min(max(badge[0], low), high), min(max(badge[1], low), high)


def _texture(random: RandomStream, window: _Window) -> np.ndarray:
    """(rows, columns of the window) bool: stripes, checks or spots."""
    period = random.integer(4, 8)
    u, v = window.turned(random.integer(0, 16))
    u, v = u >> 4, v >> 4
    kind = random.integer(0, 3)
    if kind == 0:
        return u % period < period // 2
    if kind == 1:
        return (u // (period // 2) + v // (period // 2)) % 2 == 0
    return (u % period - period // 2) ** 2 + (v % period - period // 2) ** 2 <= period * period // 9


def _draw_badge(
    random: RandomStream, image: np.ndarray, occupied: np.ndarray, place: tuple[int, int], label: int
) -> None:
    """Draws the part that decides the class: a disc in a ring."""
    disc_name, _, ring_name = CLASS_NAMES[label].split()
    radius = random.integer(6, 9)
    window = _Window(*place, radius, radius)
    for name, reach in ((ring_name, radius), (disc_name, radius * 6 // 10)):
        shape = window.ellipse(reach, reach)
        image[window.frame][shape] = [value + random.integer(-15, 16) for value in BADGE_COLOURS[name]]
        occupied[window.frame] |= shape


register(
    Layout(
        name="synthetic",
        summary="nothing on disk: the built-in set",
        expects="the word synthetic instead of a folder",
        find_root=lambda root: root if str(root) == "synthetic" else None,
        splits=lambda root: SPLITS,
        read=read,
        order=100,
        on_disk=False,
    )
)
