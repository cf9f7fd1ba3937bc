"""Image files in folders: each file once, whatever links lead to it, and a count of what is left out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

# What a data folder, `predict` and `check-data` take for an image file.
IMAGE_SUFFIXES = frozenset(
    [".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif"],
)
HEIC_SUFFIXES = frozenset([".heic", ".heif"])  # photos of phones: read where pillow-heif is installed
SHOWN = 3  # examples in a sentence
# Why `Listing` has paths beside those of images.
REASONS = {
    "others": "no image file, by its suffix",
    "odd": "not a regular file",
    "repeated": "a link to what is listed already",
    "loops": "a link to a folder above it",
    "skipped": "results of scm-fast predict",
}


def image_suffixes() -> frozenset[str]:
    """Return the suffixes, in small letters, of files that can be read here."""
    from .heic import can_read_heic

    return IMAGE_SUFFIXES | HEIC_SUFFIXES if can_read_heic() else IMAGE_SUFFIXES


def class_folders(folder: Path) -> list[str]:
    """Names of the visible folders in `folder`, sorted: the order of the labels. `folder_loops` are left out."""
    loops = set(folder_loops(folder))
    return [name for name in _visible_folders(folder) if name not in loops]


def folder_loops(folder: Path) -> list[str]:
    """Names of the links in `folder` that lead back to it, or to a folder above it."""
    real = os.path.realpath(folder)
    paths = {name: os.path.join(folder, name) for name in _visible_folders(folder)}
    return [
        name
        for name, path in paths.items()
        if os.path.islink(path) and _is_above(os.path.realpath(path), real)
    ]


def _visible_folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def image_names(folder: Path) -> list[str]:
    """Names of the image files in `folder`, sorted; hidden files are left out."""
    return sorted(entry.name for entry in _Folder.read(folder).images)


def has_images(folder: Path, depth: int = 2) -> bool:
    """Tell whether an image is in `folder` or at most `depth` folders below (a wrong folder may be a disk)."""
    suffixes, folders = image_suffixes(), []
    with os.scandir(folder) as entries:
        for entry in entries:  # until the first image: a folder may have a million
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                folders.append(entry.name)
            elif _suffix(entry.name) in suffixes:
                return True
    return depth > 0 and any(has_images(folder / name, depth - 1) for name in sorted(folders))


def holds_annotations(folder: Path) -> bool:
    """Tell whether a folder has a json, and neither an image nor a folder: it is no class."""
    has_json = False
    with os.scandir(folder) as entries:
        for entry in entries:
            if _is_image(entry.name) or entry.is_dir():
                return False
            has_json = has_json or _suffix(entry.name) == ".json"
    return has_json


def image_paths(folder: Path) -> list[str]:
    """Paths of the image files below `folder` at any depth, relative to it, with /, sorted."""
    return list_images(folder).paths


@dataclass
class Listing:
    """The image files below a folder, and what else is there.

    paths: relative to the folder, with /, sorted.
    others: paths of files with another suffix.
    odd: paths of images that are no files, such as pipes.
    repeated: paths of links to files and folders that are listed already.
    loops: paths of links to a folder above them.
    skipped: paths of folders that were not looked into, as the caller wished.
    """

    paths: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def below(self, part: str) -> Listing:
        """Return what is below one of the folders, which the paths still begin with."""
        inside = f"{part}/" if part else ""

        def of(paths: Iterable[str]) -> list[str]:
            return [path for path in paths if path.startswith(inside)]

        return Listing(*(of(getattr(self, kind.name)) for kind in fields(self)))

    def reasons(self) -> Iterator[tuple[str, str]]:
        """Each path that was left out, and why."""
        for kind, reason in REASONS.items():
            for path in getattr(self, kind):
                yield path, reason

    def notes(self) -> list[str]:
        """Describe what was left out: files that are no images by suffix, anything else by reason."""
        sentences = [left_out_by_suffix(self.others)] if self.others else []
        for kind, reason in REASONS.items():
            paths = getattr(self, kind)
            if paths and kind != "others":
                shown = ", ".join(paths[:SHOWN]) + (f" and {len(paths) - SHOWN} more" * (len(paths) > SHOWN))
                sentences.append(f"passed over {shown}: {reason}")
        return sentences


def left_out_by_suffix(paths: Sequence[str]) -> str:
    """A sentence on files that were not read: how many of each suffix, and what would read them."""
    suffixes = Counter(_suffix(path) for path in paths)
    counts = ", ".join(f"{count} {suffix or 'without a suffix'}" for suffix, count in suffixes.most_common())
    which = "1 file that is" if len(paths) == 1 else f"{len(paths)} files that are"
    sentence = f"left out {which} no image: {counts}"
    if HEIC_SUFFIXES & set(suffixes):
        sentence += "; pip install 'scm-fast[heic]' reads HEIC photos"
    return sentence


class _Entry(NamedTuple):
    name: str
    path: str
    is_link: bool


class _Folder(NamedTuple):
    """The visible entries of a folder, each list sorted by name."""

    images: list[_Entry]
    folders: list[_Entry]
    others: list[_Entry]
    odd: list[_Entry]

    @classmethod
    def read(cls, folder: str | Path) -> _Folder:
        found = cls([], [], [], [])
        suffixes = image_suffixes()
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.startswith("."):
                    continue
                item = _Entry(entry.name, entry.path, entry.is_symlink())
                if entry.is_dir():
                    found.folders.append(item)
                elif _suffix(entry.name) not in suffixes:
                    found.others.append(item)
                elif entry.is_file() or not os.path.exists(entry.path):
                    found.images.append(item)  # also a broken link: whoever reads it says so
                else:
                    found.odd.append(item)
        return found


def list_images(
    root: str | Path, parts: Sequence[str] = ("",), skips: Callable[[str], bool] = lambda folder: False
) -> Listing:
    """List the image files below some folders of `root`, at any depth; links are followed.

    A file counts once: where it is itself, or else at the first link that leads to it. So folders come first and
    links after them. A link to a folder above it is passed over.

    skips: whether a folder, given by its real path, is not to be looked into.
    """
    walk = _Walk(os.fspath(Path(root)), skips)
    for part in parts:
        walk.begin(part)
    walk.follow_links()
    found = walk.found
    for kind in fields(found):
        getattr(found, kind.name).sort()
    return found


class _Walk:
    """Remembers which real folders and files were listed, and the links that are still to be followed."""

    def __init__(self, root: str, skips: Callable[[str], bool]) -> None:
        self.root, self.found, self._skips = root, Listing(), skips
        self._folders: set[str] = set()  # real paths
        self._links_to_folders: list[
            tuple[_Entry, str]
        ] = []  # each with the real path of the folder it is in
        self._links_to_files: list[_Entry] = []

    def begin(self, part: str) -> None:
        """List the root, or a folder in it, which may be a link."""
        path = os.path.join(self.root, part) if part else self.root
        if part and os.path.islink(path):
            self._links_to_folders.append((_Entry(part, path, True), os.path.realpath(self.root)))
        else:
            self.enter(path)

    def enter(self, folder: str) -> None:
        """List a folder and what is below it, leaving its links for later."""
        waiting = [(folder, os.path.realpath(folder))]
        while waiting:
            path, real = waiting.pop()
            if real in self._folders:
                continue
            self._folders.add(real)
            if self._skips(real):
                self.found.skipped.append(self._below_root(path))
                continue
            content = _Folder.read(path)
            self.found.others += map(self._relative, content.others)
            self.found.odd += map(self._relative, content.odd)
            self.found.paths += [self._relative(image) for image in content.images if not image.is_link]
            self._links_to_files += [image for image in content.images if image.is_link]
            for item in content.folders:
                if item.is_link:
                    self._links_to_folders.append((item, real))
                else:
                    waiting.append((item.path, os.path.join(real, item.name)))

    def follow_links(self) -> None:
        real_root = os.path.realpath(self.root)
        while self._links_to_folders:
            links, self._links_to_folders = sorted(self._links_to_folders), []
            for link, real_parent in links:
                target = os.path.realpath(link.path)
                if _is_above(target, real_parent) or _is_above(target, real_root):
                    self.found.loops.append(self._relative(link))
                elif target in self._folders:
                    self.found.repeated.append(self._relative(link))
                else:
                    self.enter(link.path)
        targets: set[str] = set()
        for link in sorted(self._links_to_files):
            target = os.path.realpath(link.path)
            folder, name = os.path.split(target)
            is_listed = folder in self._folders and not name.startswith(".") and _is_image(name)
            if (is_listed and os.path.exists(target)) or target in targets:
                self.found.repeated.append(self._relative(link))
            else:
                self.found.paths.append(self._relative(link))
            targets.add(target)

    def _relative(self, entry: _Entry) -> str:
        return self._below_root(entry.path)

    def _below_root(self, path: str) -> str:
        below = path[len(self.root) :].lstrip(os.sep) or "."
        return below if os.sep == "/" else below.replace(os.sep, "/")


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _is_image(name: str) -> bool:
    return _suffix(name) in image_suffixes()


def _is_above(folder: str, other: str) -> bool:
    """Tell whether a real path is `other`, or a folder that `other` is in."""
    return folder == other or other.startswith(folder.rstrip(os.sep) + os.sep)
