"""Hook of mkdocs: the front page, notes and pages beside the code become part of the site, and links to them work.

README.md is the front page. Pages keep the relative links that work in a checkout. Here they are rewritten to the
places of the pages in the site, and links to other files of the repository become plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
READERS = (
    "start",
    "data",
    "training",
    "methods",
    "results",
    "how-it-works",
    "extending",
    "gpu",
    "troubleshooting",
)
BESIDE_THE_CODE = ("bench/README.md", "scm_fast/ops/README.md", "tests/ptx/README.md")
LINK = re.compile(
    r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)|((?:src|srcset)=\")([^\"]+)(\")|(!\[[^\]]*\]\()([^)\s]+)(\))"
)


def places() -> dict[str, str]:
    """Give the place in the site of every page, by its path in the repository."""
    found = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
    found |= {path: path.replace("/README.md", ".md") for path in BESIDE_THE_CODE}
    found |= {f"lab/{note.name}": f"lab/{note.name}" for note in (ROOT / "lab").glob("*.md")}
    pages = (path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*") if path.is_file())
    return found | {path: path.removeprefix("docs/") for path in pages}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    known = [name for name in READERS if (ROOT / "docs" / f"{name}.md").is_file()]
    others = sorted({path.stem for path in (ROOT / "docs").glob("*.md")} - set(known))
    notes = sorted(note.name for note in (ROOT / "lab").glob("2*.md"))
    site = places()
    config.nav = [
        {"scm_fast": "index.md"},
        *(f"{name}.md" for name in (*known, *others)),
        {"Reference": ["tables/kernels.md", *(site[path] for path in BESIDE_THE_CODE)]},
        {"Lab notes": ["lab/README.md", *(f"lab/{name}" for name in reversed(notes))]},
        {"Project": ["contributing.md", "changelog.md", "photos/LICENSES.md"]},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, place in places().items():
        if not path.startswith("docs/"):
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    site = places()
    here = next(path for path, place in site.items() if place == page.file.src_uri)

    def moved(target: str) -> str | None:
        """Give the address in the site, or None if the target is not in it."""
        name, hash_mark, anchor = target.partition("#")
        if not name or re.match(r"[a-z]+:", target):
            return target
        place = site.get(posixpath.normpath(posixpath.join(posixpath.dirname(here), name)))
        if place is None:
            return None
        return posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".") + hash_mark + anchor

    def rewritten(match: re.Match[str]) -> str:
        text, target, source, picture, quote, image, shown, end = match.groups()
        if target is not None:
            address = moved(target)
            return f"[{text}]({address})" if address else text
        if source is not None:
            return f"{source}{moved(picture) or picture}{quote}"
        return f"{image}{moved(shown) or shown}{end}"

    parts = re.split(r"(^```.*?^```|`[^`\n]+`)", markdown, flags=re.M | re.S)
    return "".join(LINK.sub(rewritten, part) if index % 2 == 0 else part for index, part in enumerate(parts))
