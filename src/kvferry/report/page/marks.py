"""Where the words on the marks of a chart stand, so that they do not lie across other marks' lines.

Owns the choice of side and row. Words stand beside the top of their line, a row each, and a line ends at its
own row: words in a row cross those lines only that reach up to it or above. With few marks all ways to place
them are tried. Knows nothing of what is marked; positions and widths are shares of the chart's width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import Literal, NamedTuple

__all__ = ["Place", "places"]

Side = Literal["left", "right"]
_MOST_TRIED = 4
_OUTSIDE = 10
"""Words that leave the chart cost more than words across any number of lines."""


class Place(NamedTuple):
    """Where one mark's words stand."""

    row: int
    """From 0 at the top."""
    side: Side
    """The end of the words that is at the line: with `left` they stand to its right."""


def places(at: Sequence[float], widths: Sequence[float]) -> list[Place]:
    """A place for the words of each mark; `at` and `widths` are shares of the chart's width.

    Of two marks none crosses the other. Three that divide the chart evenly leave the middle one no free side.
    """
    if len(at) > _MOST_TRIED:
        return [Place(row, "right" if one > 0.6 else "left") for row, one in enumerate(at)]
    return min(_all(len(at)), key=lambda found: _cost(found, at, widths), default=[])


def _all(count: int) -> Iterator[list[Place]]:
    """Every way to place so many words; the ordinary one first, and so preferred among equals."""
    sides: tuple[Side, Side] = ("left", "right")
    for rows in permutations(range(count)):
        for chosen in product(sides, repeat=count):
            yield [Place(row, side) for row, side in zip(rows, chosen, strict=True)]


def _cost(found: Sequence[Place], at: Sequence[float], widths: Sequence[float]) -> int:
    cost = 0
    for number, (place, line, width) in enumerate(zip(found, at, widths, strict=True)):
        left, right = (line, line + width) if place.side == "left" else (line - width, line)
        cost += _OUTSIDE * (left < 0.0) + _OUTSIDE * (right > 1.0)
        cost += sum(
            left < other < right and found[index].row <= place.row
            for index, other in enumerate(at)
            if index != number
        )
    return cost
