"""The pages as a site: it builds without a warning, and every link and picture in it is there."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def links(html: str) -> set[str]:
    found = set(
        re.findall(r"<(?:a|img|source|link|script)\b[^>]*?\b(?:href|src|srcset)=\"?([^\"\s>]+)", html)
    )
    return {link for link in found if not re.match(r"[a-z]+:|//", link)}


def test_every_page_is_there(site):
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {
        "index",
        "contributing",
        "changelog",
        "bench",
    }
    assert pages <= {path.stem for path in site.glob("*.html")}
    notes = {path.stem for path in (ROOT / "lab").glob("2*.md")}
    assert notes == {path.stem for path in (site / "lab").glob("2*.html")}


def test_links_lead_somewhere(site):
    broken = []
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links start at the site's address
            continue
        for link in links(page.read_text()):
            name, _, anchor = unquote(link).partition("#")
            target = (page.parent / name).resolve() if name else page
            target = target / "index.html" if target.is_dir() else target
            named = rf"\bid=\"?{re.escape(anchor)}[\"\s>]"
            if not target.is_file() or (anchor and not re.search(named, target.read_text())):
                broken.append((page.name, link))
    assert broken == []


def test_the_front_page_is_the_readme(site):
    front = (site / "index.html").read_text()
    assert "images/first_boxes.jpg" in front
    assert "results.html#speed-and-memory" in front
    assert "docs/images" not in front


def test_nothing_is_loaded_from_elsewhere(site):
    front = (site / "index.html").read_text()
    assert (
        re.findall(r"<(?:script|img|link rel=\"?stylesheet)[^>]*(?:src|href)=\"?(https?:[^\"\s>]+)", front)
        == []
    )
