"""Figures with intervals as charts and tables show them: a colour for each arm, whiskers, a dash.

Owns the look of an arm and nothing of what is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...runs.retention_summary import ARMS, Figure, Interval, Refused
from ..page.charts import SERIES, label

__all__ = ["COLOURS", "NAMES", "brief", "dots", "in_order", "line", "shown", "span_of"]

NAMES = {
    "target": "target native",
    "source": "source alone",
    "mapped": "mapped",
    "raw": "raw source KV",
    "random": "random map",
    "wrong": "wrong document",
    "none": "no context",
}
COLOURS = {
    "target": "var(--ink)",
    "source": SERIES[2],
    "mapped": SERIES[0],
    "raw": SERIES[3],
    "random": SERIES[5],
    "wrong": SERIES[1],
    "none": SERIES[4],
}


def in_order(names: Iterable[str]) -> list[str]:
    """Arms in the order in which they are always shown."""
    found = set(names)
    return [name for name in ARMS if name in found]


def brief(figure: Figure | None, digits: int = 2) -> str:
    """ "0.91 (0.87–0.94)", for tables of many columns; a dash where there is none."""
    if not isinstance(figure, Interval):
        return "–"
    return f"{figure.value:.{digits}f} ({figure.low:.{digits}f}–{figure.high:.{digits}f})"


def shown(figure: Figure | None, digits: int = 3) -> str:
    """ "0.912 (0.874 to 0.941)"; a dash where there is none."""
    if not isinstance(figure, Interval):
        return "–"
    return f"{figure.value:.{digits}f} ({figure.low:.{digits}f} to {figure.high:.{digits}f})"


def span_of(figure: Figure, digits: int = 3) -> str:
    """The interval alone, or why there is none."""
    if isinstance(figure, Refused):
        return figure.reason
    return f"95 %: {figure.low:.{digits}f} to {figure.high:.{digits}f}"


def dots(figures: Sequence[tuple[str, Figure]], colours: Sequence[str], *, unit: str = "") -> dict[str, Any]:
    """One mark a row with its whiskers; rows are (name, figure)."""
    known = [
        (name, one, colour)
        for (name, one), colour in zip(figures, colours, strict=True)
        if isinstance(one, Interval)
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "showlegend": False,
        "y": [label(name) for name, _, _ in known],
        "x": [one.value for _, one, _ in known],
        "customdata": [[one.low, one.high] for _, one, _ in known],
        "marker": {"color": [colour for _, _, colour in known], "size": 10},
        "error_x": _whiskers([one for _, one, _ in known], "var(--faint)", 1.4),
        "hovertemplate": f"%{{y}}: %{{x:.3f}}{unit} (%{{customdata[0]:.3f}} to %{{customdata[1]:.3f}})"
        "<extra></extra>",
    }


def line(
    name: str,
    xs: Sequence[float | str],
    figures: Sequence[Figure],
    colour: str,
    *,
    dash: str = "solid",
    legend: str = "legend",
    symbol: str = "circle",
    whiskers: bool = True,
) -> dict[str, Any]:
    """A line through estimates with their whiskers; points without a figure are left out."""
    known = [(x, one) for x, one in zip(xs, figures, strict=True) if isinstance(one, Interval)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label(name),
        "legend": legend,
        "x": [x for x, _ in known],
        "y": [one.value for _, one in known],
        "customdata": [[one.low, one.high] for _, one in known],
        "line": {"color": colour, "width": 2.2, "dash": dash},
        "marker": {"color": colour, "size": 7, "symbol": symbol},
        "error_y": {**_whiskers([one for _, one in known], colour, 1.0), "visible": whiskers},
        "hovertemplate": f"{label(name)}, %{{x}}: %{{y:.3f}} "
        "(%{customdata[0]:.3f} to %{customdata[1]:.3f})<extra></extra>",
    }


def _whiskers(figures: Sequence[Interval], colour: str, thickness: float) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [one.high - one.value for one in figures],
        "arrayminus": [one.value - one.low for one in figures],
        "color": colour,
        "thickness": thickness,
        "width": 3,
    }
