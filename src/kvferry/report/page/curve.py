"""How large a cache has to be: hit against capacity, exact, sampled and under other policies."""

from __future__ import annotations

import math
from typing import Any

from ...analysis.result import Analysis, CurvePoint, Mark, PolicyPoint
from .charts import SERIES, bytes_axis, chart, label, mark, percent_axis, tokens_axis
from .content import Figure, Section, Table
from .marks import places
from .numbers import compact, percent, size

__all__ = ["curve_section"]

_POLICIES = {
    "lru": ("LRU, simulated", "circle-open", SERIES[0]),
    "s3fifo": ("S3-FIFO", "diamond", SERIES[2]),
    "gdsf": ("cost-aware (GDSF)", "square", SERIES[3]),
    "belady": ("Belady, the bound", "triangle-up", SERIES[1]),
}
_MOST_POINTS = 600
_MOST_ROWS = 24
_HEIGHT = 420
_LETTER_SHARE = 6.4 / 800
"""Width of a letter of a mark's words in a chart as wide as a page on a desk."""
_ROW_SHARE = 16 / 330
"""Height of a row of words, in a chart of this height less its legend and axis."""


def curve_section(result: Analysis) -> Section | None:
    """The curve with its marks; None where the trace names no blocks."""
    if not result.curve:
        return None
    in_bytes = all(_capacity(point, True) is not None for point in result.curve)
    points = [point for point in result.curve if _at(point, in_bytes) > 0]
    if not points:
        return None
    traces = [_line(_some(points), in_bytes, "LRU, exact", SERIES[0], "solid")]
    if result.sampled is not None:
        held = [point for point in result.sampled.points if _at(point, in_bytes) > 0]
        name = f"LRU from {percent(result.sampled.rate)} of blocks"
        traces.append(_line(_some(held), in_bytes, name, SERIES[4], "dash"))
    traces += [
        _policy(name, result.policies, in_bytes) for name in dict.fromkeys(p.policy for p in result.policies)
    ]
    marks = sorted((m for m in result.marks if _at(m, in_bytes) > 0), key=lambda m: _at(m, in_bytes))
    drawn: list[CurvePoint | PolicyPoint | Mark] = [*points, *result.policies, *marks]
    xs = [_at(p, in_bytes) for p in drawn if _at(p, in_bytes) > 0]
    shapes, notes = _marks(marks, in_bytes, min(xs), max(xs))
    highest = max(p.hit_by_token for p in drawn)
    if result.hit is not None:
        highest = max(highest, result.hit.by_token)
        shape, note = mark(
            100 * result.hit.by_token,
            f"forgets nothing: {percent(result.hit.by_token)}",
            percent(result.hit.by_token),
            axis="y",
        )
        shapes.append(shape)
        notes.append(note)
    title = "capacity of one cache" if in_bytes else "capacity of one cache, tokens"
    axis = (bytes_axis if in_bytes else tokens_axis)(min(xs), max(xs), title)
    figure = Figure(
        name="curve-chart",
        chart=chart(
            traces,
            hovermode="closest",
            xaxis=axis,
            # Marks stand above the curve, so that their words cross nothing.
            yaxis=percent_axis(highest * 1.2),
            shapes=shapes,
            annotations=notes,
        ),
        alt=_alt(points, marks, in_bytes),
        axes="Hit ratio by token, against the capacity of one cache (log scale)",
        height=_HEIGHT,
        numbers=_numbers(result, points, in_bytes),
    )
    return Section(
        name="curve",
        title="How large a cache has to be",
        lead=_lead(result, points, in_bytes),
        figures=(figure,),
        note=_note(result),
    )


def _capacity(point: CurvePoint | PolicyPoint | Mark, in_bytes: bool) -> int | None:
    return point.capacity_bytes if in_bytes else point.capacity_tokens


def _at(point: CurvePoint | PolicyPoint | Mark, in_bytes: bool) -> int:
    return _capacity(point, in_bytes) or 0


def _held(capacity: float, in_bytes: bool) -> str:
    return size(capacity) if in_bytes else f"{compact(capacity)} tokens"


def _some(points: list[CurvePoint], most: int = _MOST_POINTS) -> list[CurvePoint]:
    """Few enough to draw, the first and the last among them."""
    if len(points) <= most:
        return points
    step = (len(points) - 1) / (most - 1)
    return [points[round(number * step)] for number in range(most)]


def _line(points: list[CurvePoint], in_bytes: bool, name: str, colour: str, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [_at(p, in_bytes) for p in points],
        "y": [100.0 * p.hit_by_token for p in points],
        "customdata": [_held(_at(p, in_bytes), in_bytes) for p in points],
        "line": {"color": colour, "width": 2.4 if dash == "solid" else 1.6, "dash": dash},
        "hovertemplate": f"{name}<br>%{{customdata}}: %{{y:.1f}}%<extra></extra>",
    }


def _policy(policy: str, found: tuple[PolicyPoint, ...], in_bytes: bool) -> dict[str, Any]:
    name, symbol, colour = _POLICIES.get(policy, (label(policy), "x", SERIES[7]))
    points = [p for p in found if p.policy == policy and _at(p, in_bytes) > 0]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [_at(p, in_bytes) for p in points],
        "y": [100.0 * p.hit_by_token for p in points],
        "customdata": [_held(_at(p, in_bytes), in_bytes) for p in points],
        "marker": {
            "symbol": symbol,
            "size": 9,
            "color": colour,
            "line": {"width": 1.4, "color": "var(--panel)"},
        }
        if not symbol.endswith("open")
        else {"symbol": symbol, "size": 9, "color": colour, "line": {"width": 1.6}},
        "hovertemplate": f"{name}<br>%{{customdata}}: %{{y:.1f}}%<extra></extra>",
    }


def _marks(marks: list[Mark], in_bytes: bool, low: float, high: float) -> tuple[list[Any], list[Any]]:
    shapes, notes = [], []
    width = max(math.log10(high) - math.log10(low), 1e-9)
    words = [
        f"{label(found.name, 24)} · {_held(_at(found, in_bytes), in_bytes)} · {percent(found.hit_by_token)}"
        for found in marks
    ]
    placed = places(
        [(math.log10(_at(found, in_bytes)) - math.log10(low)) / width for found in marks],
        [_LETTER_SHARE * (2 + len(text)) for text in words],
    )
    for found, text, place in zip(marks, words, placed, strict=True):
        at = _at(found, in_bytes)
        shape, note = mark(at, text, label(found.name, 16), row=place.row, side=place.side)
        note["x"] = math.log10(at)
        # Up to its own words: those of other marks may stand above it.
        shape["y1"] = 1.0 - place.row * _ROW_SHARE
        shapes.append(shape)
        notes.append(note)
    return shapes, notes


def _lead(result: Analysis, points: list[CurvePoint], in_bytes: bool) -> str:
    if not result.marks:
        return ""
    most = result.hit.by_token if result.hit is not None else points[-1].hit_by_token
    today, *others = result.marks
    share = today.hit_by_token / most if most else 0.0
    lead = (
        f"{today.name[:1].upper()}{today.name[1:]} ({_held(_at(today, in_bytes), in_bytes)}) finds "
        f"{percent(today.hit_by_token)} of prompt tokens, {percent(share)} of what one without limit finds."
    )
    if others:
        lead += " Also marked: " + "; ".join(
            f"{one.name} at {_held(_at(one, in_bytes), in_bytes)} ({percent(one.hit_by_token)})"
            for one in others
        )
        lead += "."
    return lead


def _note(result: Analysis) -> str:
    words = ["LRU by whole requests: the longest matched prefix is used, its tail is evicted first."]
    if result.sampled is not None:
        words.append(
            f"The sampled curve (SHARDS) is off by {100 * result.sampled.mean_error:.2f} points in the mean "
            f"and {100 * result.sampled.worst_error:.2f} at worst."
        )
    return " ".join(words)


def _alt(points: list[CurvePoint], marks: list[Mark], in_bytes: bool) -> str:
    first, last = points[0], points[-1]
    told = "; ".join(
        f"{m.name}: {percent(m.hit_by_token)} at {_held(_at(m, in_bytes), in_bytes)}" for m in marks
    )
    return (
        f"Line chart. Hit ratio by token rises from {percent(first.hit_by_token)} at "
        f"{_held(_at(first, in_bytes), in_bytes)} to {percent(last.hit_by_token)} at "
        f"{_held(_at(last, in_bytes), in_bytes)}. {told}"
    ).strip()


def _numbers(result: Analysis, points: list[CurvePoint], in_bytes: bool) -> Table:
    rows = [
        ("LRU", _held(_at(p, in_bytes), in_bytes), percent(p.hit_by_token), percent(p.hit_useful_tokens))
        for p in _some(points, _MOST_ROWS)
    ]
    rows += [
        (
            _POLICIES.get(p.policy, (p.policy,))[0],
            _held(_at(p, in_bytes), in_bytes),
            percent(p.hit_by_token),
            percent(p.hit_useful_tokens),
        )
        for p in result.policies
    ]
    return Table(("policy", "capacity", "by token", "useful tokens"), tuple(rows), frozenset({1, 2, 3}))
