"""Read a Markdown file: links, anchors, code blocks, commands. Used by tests/test_docs.py."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|<(?:img|a|source)[^>]*(?:src|href|srcset)=\"([^\"]+)\"")
SPAN = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ +(.*)$", re.M)


class Block(NamedTuple):
    language: str
    line: int  # of its first line in the file
    text: str


def blocks(text: str, *languages: str) -> list[Block]:
    found = [Block(m[1], text.count("\n", 0, m.start()) + 2, m[2]) for m in FENCE.finditer(text)]
    return [block for block in found if not languages or block.language in languages]


def without_blocks(text: str) -> str:
    """The text with its code blocks blank; every line keeps its number."""
    return FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)


def prose(text: str) -> str:
    """The running text: without code, tables, quoted equations, html, and the addresses of links."""
    text = SPAN.sub("", without_blocks(text))
    text = re.sub(r"^(?:\|| {4}).*$", "", text, flags=re.M)
    text = re.sub(r"<[^>]+>", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def figures(text: str) -> list[str]:
    return re.findall(r"(?<![\w.])\d+(?:[.,]\d+)*", text)


def links(text: str) -> list[str]:
    plain = SPAN.sub("", without_blocks(text))
    return [first or second for first, second in LINK.findall(plain)]


def anchors(text: str) -> set[str]:
    """The names by which GitHub lets headings be linked; those that repeat are numbered."""
    names: set[str] = set()
    for heading in HEADING.findall(without_blocks(text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        name, number = slug, 0
        while name in names:
            number += 1
            name = f"{slug}-{number}"
        names.add(name)
    return names


def broken_links(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere. Others are not followed."""
    broken = []
    for link in links(page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        missing_anchor = anchor and target.suffix == ".md" and target.is_file()
        if not target.exists() or (missing_anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    return broken


def commands(script: str) -> list[list[str]]:
    """The commands of a shell script as words, without comments, redirections, assignments and launchers."""
    found = []
    for line in script.replace("\\\n", " ").splitlines():
        if line.lstrip().startswith(("#", "export ")):
            continue
        line = re.sub(r"\s#.*|\s>\s*\S+", "", line)
        for command in re.split(r"&&|\||;", line):
            words = shlex.split(command)
            while words and (re.fullmatch(r"[A-Z_]+=.*", words[0]) or words[0] in ("srun", "time")):
                words = words[1:]
            if words:
                found.append(words)
    return found


def inline_commands(text: str) -> list[list[str]]:
    """Commands that stand in the running text."""
    spans = SPAN.findall(without_blocks(text))
    first = ("scm-fast", "python", "torchrun", "pytest", "make")
    return [shlex.split(span) for span in spans if span.split()[0] in first and " " in span]
