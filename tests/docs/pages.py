"""The pages of the documentation as data: headings, links, and blocks with what is said above them.

A comment on the line above a block says what a test does with it:

    <!-- run -->              every line is run, in a folder as in a clone
    <!-- output -->           what the block before it prints
    <!-- output: COMMAND -->  what COMMAND prints
    <!-- file: NAME -->       the content of a file that later blocks of the page use
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["PAGES", "ROOT", "Block", "Page", "pages"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (?P<mark>[^>]*) -->\n\Z")
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    mark: str
    """What the comment above it says; empty without one."""
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def lines(self) -> list[str]:
        """Its lines, those that end with a backslash joined with the next."""
        return [line for line in self.text.replace("\\\n", " ").splitlines() if line.strip()]


@dataclass(frozen=True)
class Page:
    """One page."""

    path: Path
    text: str
    blocks: tuple[Block, ...]

    @property
    def prose(self) -> str:
        """Everything but the blocks."""
        return _FENCE.sub("", self.text)

    @property
    def links(self) -> list[str]:
        return [match["target"] for match in _LINK.finditer(self.prose)]

    @property
    def anchors(self) -> set[str]:
        """What a link may name behind `#`, made as GitHub makes it."""
        titles = (match["title"].lower() for match in _HEADING.finditer(self.prose))
        return {re.sub(r"[^\w\- ]", "", title.strip()).replace(" ", "-") for title in titles}


@cache
def pages() -> tuple[Page, ...]:
    return tuple(_read(path) for path in PAGES)


def _read(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    blocks = []
    for match in _FENCE.finditer(text):
        before = text[: match.start()]
        mark = _MARK.search(before)
        blocks.append(
            Block(
                path, before.count("\n") + 1, match["language"], mark["mark"] if mark else "", match["text"]
            )
        )
    return Page(path, text, tuple(blocks))
