"""The documentation as a program reads it: pages, code blocks, links and headings."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
REPOSITORY = "https://github.com/stepfast/stepfast/blob/main/"  # links of README, which is also read on PyPI

_FENCE = re.compile(r"^([ ]*)```([^\n`]*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")


@dataclass(frozen=True)
class Block:
    """A fenced block: ```` ```python file=shop.py ```` has the words `python` and `file=shop.py`."""

    page: Path
    line: int
    words: tuple[str, ...]
    text: str

    @property
    def language(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def file(self) -> str | None:
        """The name under which the reader saves it."""
        return next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), None)


def blocks(page: Path, language: str) -> list[Block]:
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        indent, words, body = match.groups()
        line = text.count("\n", 0, match.start()) + 2
        plain = "\n".join(it.removeprefix(indent) for it in body.splitlines()) + "\n"
        found.append(Block(page, line, tuple(words.split()), plain))
    return [it for it in found if it.language == language]


def prose(page: Path) -> str:
    """The page without its blocks."""
    return _FENCE.sub("", page.read_text())


def links(page: Path) -> list[str]:
    """The links of a page; those into this repository relative to the page, however they are written."""
    return [_relative(link, page) for link in _LINK.findall(_CODE.sub("", prose(page)))]


def _relative(link: str, page: Path) -> str:
    if not link.startswith(REPOSITORY):
        return link
    return os.path.relpath(ROOT / link.removeprefix(REPOSITORY), page.parent)


def anchors(page: Path) -> set[str]:
    """Where a link into this page may lead, as the usual renderers spell it."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in _HEADING.findall(prose(page))
    }


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))
