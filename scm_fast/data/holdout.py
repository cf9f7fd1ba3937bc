"""Held-out images for layouts that come without a validation split.

The rule: within each class, images are ordered by the SHA-256 of "<seed>:<id>" and the first ones are held
out. It depends on an image's own name alone, not on the order of files, the platform or the other classes,
so it is the same on every machine, and adding images moves few of the others between splits.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

from .records import Record

HOLDOUT_SEED = 0
VAL_FRACTION = 0.1  # of each class's training images
TEST_FRACTION = 0.2  # of each class, for an ImageFolder without split folders


def held_out_count(images: int, fraction: float) -> int:
    """Return how many images of a class are held out: the fraction, at least 1, and never the last image."""
    return min(max(1, round(images * fraction)), images - 1)


def by_hash(records: Iterable[Record], seed: int = HOLDOUT_SEED) -> dict[int, list[Record]]:
    """label -> its records in the order in which they are held out."""
    classes: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        classes[record.label].append(record)
    for members in classes.values():
        members.sort(key=lambda record: _place(seed, record.id))
    return classes


def _place(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}:{name}".encode(errors="surrogateescape")).digest()


def split_off(records: Sequence[Record], fraction: float) -> tuple[list[Record], list[Record]]:
    """(kept, held out), both in the given order."""
    chosen: set[str] = set()
    for members in by_hash(records).values():
        chosen.update(record.id for record in members[: held_out_count(len(members), fraction)])
    kept = [record for record in records if record.id not in chosen]
    held_out = [record for record in records if record.id in chosen]
    return kept, held_out
