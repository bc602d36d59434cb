"""How the figures of a page are described for plotly.js: axes with honest units, marks, bars, strips.

Owns the look that all figures share in their data (the page's style owns colours and fonts). Every text that
came from a user's file goes through `label`, since plotly.js reads a subset of HTML in texts.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from .content import Chart
from .numbers import compact, count, percent, size

__all__ = [
    "SERIES",
    "bytes_axis",
    "chart",
    "label",
    "mark",
    "numbers_axis",
    "percent_axis",
    "seconds_axis",
    "stacked_bar",
    "tokens_axis",
]

SERIES = tuple(f"var(--series-{number})" for number in range(1, 9))
"""Colours that tell series apart in light and dark and for the colour-blind; 5 is grey, 6 is for trouble."""

_MOST_TICKS = 9


def label(text: str, longest: int = 60) -> str:
    """A user's text for a chart: shown as it is, whatever it holds, cut where it would push out the chart."""
    text = " ".join(text.split())
    return html.escape(text if len(text) <= longest else text[: longest - 1] + "…", quote=False)


def chart(data: Sequence[dict[str, Any]], **layout: Any) -> Chart:
    """A figure of these traces."""
    return {"data": list(data), "layout": layout}


def percent_axis(highest: float = 1.0, **more: Any) -> dict[str, Any]:
    """A linear axis of shares given in percent, from 0 to a little above `highest` (a share)."""
    top = min(102.0, max(1.0, 108.0 * highest))
    return {"range": [0, top], "ticksuffix": "%", "hoverformat": ".1f", "nticks": 6, **more}


def _whole_axis() -> dict[str, Any]:
    """Shares of a whole, from 0 to 100%. The words of the last tick stand half beyond it, which plotly.js
    would rather leave out than allow."""
    return {"range": [0, 100], "ticksuffix": "%", "showgrid": False, "tick0": 0, "dtick": 20} | {
        "ticklabeloverflow": "allow"
    }


def bytes_axis(low: float, high: float, title: str = "") -> dict[str, Any]:
    """A logarithmic axis of bytes with ticks at powers of two."""
    first, last = math.floor(math.log2(max(low, 1.0))), math.ceil(math.log2(max(high, 2.0)))
    # Whole units are always among the ticks, and between them as many as there is room for.
    for between in (range(10), (0, 2, 4, 6, 8), (0, 3, 6), (0, 5), (0,)):
        values = [2.0**power for power in range(first, last + 1) if power % 10 in between]
        values = [value for value in values if low / 1.1 <= value <= high * 1.1]
        if len(values) <= _MOST_TICKS:
            break
    return _log_axis(low, high, values, [size(value) for value in values], title)


def tokens_axis(low: float, high: float, title: str = "") -> dict[str, Any]:
    """A logarithmic axis of tokens with ticks at powers of ten."""
    exponents = range(math.floor(math.log10(max(low, 1.0))), math.ceil(math.log10(max(high, 2.0))) + 1)
    values = [10.0**exponent for exponent in exponents]
    return _log_axis(low, high, values, [compact(value) for value in values], title)


def seconds_axis(low: float, high: float, title: str = "") -> dict[str, Any]:
    """A logarithmic axis of measured times."""
    values = [
        digit * 10.0**exponent
        for exponent in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digit in (1, 2, 5)
        if low / 1.3 <= digit * 10.0**exponent <= high * 1.3
    ]
    if len(values) > _MOST_TICKS:
        values = [value for value in values if f"{value:e}"[0] == "1"]
    if not any(low <= value <= high for value in values) and low < high:
        # Between two round numbers: an axis without one would tell nothing.
        values = [float(f"{value:.2g}") for value in (low, high)]
    return _log_axis(
        low,
        high,
        values,
        [f"{value:g} s" if value >= 1 else f"{1e3 * value:g} ms" for value in values],
        title,
    )


def numbers_axis(title: str = "", **more: Any) -> dict[str, Any]:
    """A linear axis from zero."""
    return {"rangemode": "tozero", "title": {"text": title}, "nticks": 8, **more}


def mark(
    at: float, text: str, short: str, *, row: int = 0, axis: str = "x", dash: str = "dot", side: str = "left"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A line across the figure at `at` and its words (shape, annotation); on a log axis, give log10.

    `short` is all that a phone has room for. `row` sets the words lower, one line each, so that neighbours
    do not cover each other.
    """
    shape: dict[str, Any] = {
        "type": "line",
        "layer": "above",
        "line": {"color": "var(--mark)", "width": 1.2, "dash": dash},
    }
    note: dict[str, Any] = {
        "text": text,
        "name": short,
        "showarrow": False,
        "font": {"color": "var(--mark)", "size": 11.5},
        "bgcolor": "var(--panel)",
        "borderpad": 1,
    }
    if axis == "x":
        # Shapes take the value itself also on a log axis; annotations take its logarithm.
        shape |= {"xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1}
        note |= {"xref": "x", "yref": "paper", "x": at, "y": 1, "yanchor": "top", "yshift": -16 * row}
        note |= {"xanchor": side, "xshift": 5 if side == "left" else -5}
    else:
        shape |= {"xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": at, "y1": at}
        note |= {"xref": "paper", "yref": "y", "x": 0, "y": at, "xanchor": "left", "yanchor": "bottom"}
    return shape, note


def stacked_bar(parts: Sequence[tuple[str, float, str]], total: float, unit: str) -> Chart:
    """One bar of all parts (name, amount, colour). The key to the colours is the table that goes with it."""
    data = []
    for name, amount, colour in parts:
        share = amount / total if total else 0.0
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": label(name),
                "x": [100.0 * share],
                "y": [""],
                "text": [percent(share) if share >= 0.06 else ""],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "constraintext": "none",
                "insidetextfont": {"color": "var(--panel)"},
                "marker": {"color": colour, "line": {"color": "var(--panel)", "width": 1}},
                "showlegend": False,
                "hovertemplate": f"{label(name)}<br>{count(amount)} {unit}, {percent(share)}<extra></extra>",
            }
        )
    return chart(
        data,
        barmode="stack",
        bargap=0.1,
        hovermode="closest",
        xaxis=_whole_axis(),
        yaxis={"showticklabels": False, "showgrid": False, "fixedrange": True},
    )


def _log_axis(low: float, high: float, values: list[float], texts: list[str], title: str) -> dict[str, Any]:
    room = 0.02 * max(0.3, math.log10(high) - math.log10(low))
    return {
        "type": "log",
        "range": [math.log10(low) - room, math.log10(high) + room],
        "tickvals": values,
        "ticktext": texts,
        "title": {"text": title},
    }
