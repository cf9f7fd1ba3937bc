"""Pictures from integers: random numbers, backgrounds, bodies and badges, the same bytes on every machine.

Only integer arithmetic is used: no libm, no BLAS, no library random numbers, whose results may differ between
machines and versions. Pictures are (SIZE, SIZE, 3) int16 while they are drawn.
"""

from __future__ import annotations

import numpy as np

SIZE = 96  # pixels, width and height
MARGIN = 18  # between the middle of a body and the frame
BADGE_MARGIN = 10  # between the middle of a badge and the frame, so that every badge is whole
TEXTURES = ("stripes", "checks", "spots")

# cos and sin of 16 directions, times 1024, as integers.
_COSINES = (1024, 946, 724, 392, 0, -392, -724, -946, -1024, -946, -724, -392, 0, 392, 724, 946)
_SINES = _COSINES[12:] + _COSINES[:12]

Colour = tuple[int, int, int]


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


def draw_background(random: RandomStream, grey: int) -> np.ndarray:
    """(SIZE, SIZE, 3) int16: clouds of two muted colours under a few rectangles and ellipses."""
    clouds = (2 * _clouds(random, 4) + _clouds(random, 9)) // 3
    first, second = _muted(random, grey - 12), _muted(random, grey + 12)
    image = first + ((second - first) * clouds[..., None] // 255).astype(np.int16)
    for _ in range(random.integer(0, 4)):
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


def tint_of(colour: Colour, ninths: int) -> np.ndarray:
    """(3,) to be added to a body's greys: so many ninths of a colour's saturation."""
    saturated = np.array(colour, np.int16)
    return (saturated - saturated.sum() // 3) * ninths // 9


def draw_body(
    random: RandomStream,
    image: np.ndarray,
    grey: int,
    tints: tuple[np.ndarray, np.ndarray],
    texture: int,
    lengths: tuple[int, int],
    breadths: tuple[int, int],
) -> tuple[np.ndarray, tuple[int, int]]:
    """Draws an ellipse with a lobe at either end, brighter or darker than the background by enough to stand out.

    grey: of the background.
    tints: (3,) each, of its light and of its dark parts.
    texture: index into TEXTURES.
    lengths, breadths: of the semi-axes, from the first to below the second.
    Gives the pixels that it covers, (SIZE, SIZE) bool, and (x, y) of a place near one end, where a badge is whole.
    """
    step = random.integer(55, 85)
    grey = grey + step if grey < 128 else grey - step
    direction = random.integer(0, 16)
    cos, sin = _COSINES[direction], _SINES[direction]
    length, breadth = random.integer(*lengths), random.integer(*breadths)
    x, y = random.integer(MARGIN, SIZE - MARGIN), random.integer(MARGIN, SIZE - MARGIN)

    window = _Window(x, y, length + breadth, length + breadth)
    along, across = window.turned(direction)
    mask = np.zeros(along.shape, bool)
    for end, share in ((0, 7), (-1, random.integer(5, 8)), (1, random.integer(5, 8))):  # tenths of the length
        a = length * share // 10
        b = breadth * (10 if end == 0 else random.integer(6, 11)) // 10
        middle = end * (length - a) * 16
        mask |= ((along - middle) * b) ** 2 + (across * a) ** 2 <= (16 * a * b) ** 2
    light, dark = _muted(random, grey + 30) + tints[0], _muted(random, grey - 30) + tints[1]
    pattern = _pattern(random, window, texture)
    image[window.frame][mask] = np.where(pattern[mask][:, None], light, dark)
    covered = np.zeros((SIZE, SIZE), bool)
    covered[window.frame] = mask

    offset = length * random.integer(50, 80) // 100
    place = (x + offset * cos // 1024, y + offset * sin // 1024)
    if (
        min(place) < BADGE_MARGIN or max(place) >= SIZE - BADGE_MARGIN
    ):  # a body may leave the frame, a badge not
        place = (x - offset * cos // 1024, y - offset * sin // 1024)
    low, high = BADGE_MARGIN, SIZE - BADGE_MARGIN - 1
    return covered, (min(max(place[0], low), high), min(max(place[1], low), high))


def _pattern(random: RandomStream, window: _Window, texture: int) -> np.ndarray:
    """(rows, columns of the window) bool: where a texture is light."""
    period = random.integer(10, 18)
    u, v = window.turned(random.integer(0, 16))
    u, v = u >> 4, v >> 4
    if TEXTURES[texture] == "stripes":
        return u % period < period // 2
    if TEXTURES[texture] == "checks":
        return (u // (period // 2) + v // (period // 2)) % 2 == 0
    return (u % period - period // 2) ** 2 + (v % period - period // 2) ** 2 <= period * period // 9


def draw_badge(
    random: RandomStream, image: np.ndarray, place: tuple[int, int], disc: Colour, ring: Colour
) -> np.ndarray:
    """Draws a disc in a ring; gives the pixels that they cover, (SIZE, SIZE) bool."""
    radius = random.integer(7, 10)
    window = _Window(*place, radius, radius)
    for colour, reach in ((ring, radius), (disc, radius * 6 // 10)):
        shade = [value + random.integer(-15, 16) for value in colour]
        image[window.frame][window.ellipse(reach, reach)] = shade
    covered = np.zeros((SIZE, SIZE), bool)
    covered[window.frame] = window.ellipse(radius, radius)
    return covered


def finished(random: RandomStream, image: np.ndarray) -> np.ndarray:
    """The picture as uint8, with grain."""
    image = image + random.integers(-10, 11, SIZE, SIZE, 1).astype(np.int16)
    return np.clip(image, 0, 255).astype(np.uint8)


def box_around(covered: np.ndarray) -> tuple[float, float, float, float]:
    """(x0, y0, x1, y1) of the pixels of a mask (SIZE, SIZE)."""
    rows, columns = np.flatnonzero(covered.any(1)), np.flatnonzero(covered.any(0))
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)
