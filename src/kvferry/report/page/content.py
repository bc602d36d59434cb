"""What a page is made of: a verdict, key figures, and sections of figures and tables.

Owns the shape, as plain data that a test can read without a browser. Texts are plain text: escaping is the
document's work. Refuses to know traces, runs and HTML.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

__all__ = ["Chart", "Check", "Figure", "Page", "Section", "Table", "Tile", "Tone", "in_rows"]

Chart: TypeAlias = dict[str, Any]
"""A figure of plotly.js: `data` and `layout`; colours are names of the page's style, "var(--series-1)"."""

Tone: TypeAlias = Literal["good", "bad", "plain"]


@dataclass(frozen=True, slots=True)
class Tile:
    """One key figure beside the verdict."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Table:
    """Texts in rows; columns whose number is in `right` hold numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    colours: tuple[str, ...] = ()
    """One a row, where the table is also the key to a chart's colours."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, what it shows in words for who cannot see it, and the same numbers as a table."""

    name: str
    """Unique on the page; the id of its element."""
    chart: Chart
    alt: str
    axes: str = ""
    """What is drawn against what, with units: stands above the chart."""
    height: int = 340
    numbers: Table | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Something that had to hold."""

    name: str
    held: bool


@dataclass(frozen=True, slots=True)
class Section:
    """One question and its answer."""

    name: str
    """Unique on the page; where a link leads."""
    title: str
    lead: str = ""
    """What to see, in a sentence or two, with the numbers."""
    figures: tuple[Figure, ...] = ()
    table: Table | None = None
    checks: tuple[Check, ...] = ()
    note: str = ""
    """How it was counted."""
    more: Table | None = None
    """Rows that few readers want: behind a line that opens them."""
    half: bool = False
    """May stand beside another on a wide screen."""


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that is on one page, in order."""

    kind: str
    """"Trace analysis", "Run"."""
    title: str
    subtitle: str
    verdict: tuple[str, ...]
    """Sentences; the first is the answer."""
    tone: Tone = "plain"
    tiles: tuple[Tile, ...] = ()
    sections: tuple[Section, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    """How the numbers came to be: settings, versions, machine."""


def in_rows(sections: Iterable[Section | None]) -> tuple[Section, ...]:
    """The sections that there are; a half that has no other half beside it becomes a whole one."""
    found = [section for section in sections if section is not None]
    placed: list[Section] = []
    while found:
        section = found.pop(0)
        if section.half and found and found[0].half:
            placed += [section, found.pop(0)]
        else:
            placed.append(replace(section, half=False))
    return tuple(placed)
