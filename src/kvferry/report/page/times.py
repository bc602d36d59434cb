"""Time to the first token by how the prompt became ready: every request a point, never one mean of all.

Owns the strips. Which requests of a demo belong to which distribution is the demo's own rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from ...runs.decisions import DecisionRecord
from ...runs.demo_summary import Arm, DemoSummary, is_free_choice
from ...runs.directory import RunDirectory
from ...runs.distribution import quantile, worst
from .charts import SERIES, chart, seconds_axis
from .content import Figure, Section, Table
from .numbers import count, optional_seconds, seconds

__all__ = ["Distribution", "Times", "distributions_section", "times_of"]

_PATHS = {
    "local_hit": ("local hit", SERIES[2]),
    "host_hit": ("host hit", SERIES[6]),
    "disk_hit": ("disk hit", SERIES[7]),
    "pool_hit": ("pool hit", SERIES[0]),
    "handoff": ("handed over", SERIES[1]),
    "declined": ("declined", SERIES[3]),
    "fallback": ("fallback", SERIES[5]),
    "cold": ("cold prefill", SERIES[4]),
}
"""In order of what should be the fastest."""

_MOST_POINTS = 800
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class Distribution(msgspec.Struct, frozen=True):
    """Times of one path, sorted."""

    values: tuple[float, ...]
    p50_seconds: float | None
    p95_seconds: float | None
    """The largest where there are fewer than 20."""
    p95_is_max: bool

    @property
    def n(self) -> int:
        """How many requests."""
        return len(self.values)


Times: TypeAlias = dict[str, Distribution]
"""By path, in the order in which they are drawn."""


class _Asked(msgspec.Struct):
    """What of a line of requests.jsonl is a point."""

    path: str
    ttft_seconds: float
    arm: str = ""


def times_of(records: Sequence[DecisionRecord], directory: RunDirectory, demo: DemoSummary | None) -> Times:
    """Distributions as the client saw them, or as the replica did where no client left a record."""
    found: dict[str, list[float]] = {path: [] for path in _PATHS}
    # A demo that was killed has its stages too, though no summary.
    stages = demo is not None or directory.header.command[1:2] == ["demo"]
    for path, arm, value in _points(records, directory):
        if path in found and (not stages or is_free_choice(path, arm)):
            found[path].append(value)
    return {path: _distribution(values) for path, values in found.items() if values}


def distributions_section(times: Times, demo: DemoSummary | None) -> Section | None:
    """The strips with p50 and p95; None where no request had a first token."""
    if not times:
        return None
    told = {path: _told(path, times, demo) for path in times}
    values = [value for one in times.values() for value in one.values if value > 0]
    low, high = min(values, default=1e-3), max(values, default=1.0)
    order = [path for path in _PATHS if path in times]
    traces: list[dict[str, Any]] = []
    for row, path in enumerate(order):
        traces += _strip(row, path, times[path].values, told[path])
    figure = Figure(
        name="times-chart",
        chart=chart(
            traces,
            hovermode="closest",
            xaxis=seconds_axis(low, high, "time to first token"),
            yaxis={
                "tickvals": list(range(len(order))),
                "ticktext": [f"{_PATHS[path][0]}  <b>{times[path].n}</b>" for path in order],
                "range": [len(order) - 0.45, -0.55],
                "showgrid": False,
                "fixedrange": True,
            },
        ),
        alt="Strips of times to first token: "
        + "; ".join(f"{_PATHS[path][0]} median {optional_seconds(told[path].p50_seconds)}" for path in order),
        axes="Every request a point (log scale), with the number of requests; tall bar p50, short bar p95",
        height=90 + 58 * len(order),
    )
    rows = tuple(
        (
            _PATHS[path][0],
            count(told[path].n),
            optional_seconds(told[path].p50_seconds),
            optional_seconds(told[path].p95_seconds) + (" (max)" if told[path].p95_is_max else ""),
        )
        for path in order
    )
    return Section(
        name="times",
        title="Time to first token, by how the prompt became ready",
        lead=_lead(told),
        figures=(figure,),
        table=Table(("path", "requests", "p50", "p95"), rows, frozenset({1, 2, 3})),
        note=_note(times, demo),
    )


def _points(records: Sequence[DecisionRecord], directory: RunDirectory) -> Iterator[tuple[str, str, float]]:
    if (directory.path / "requests.jsonl").is_file():
        for asked in directory.requests(_Asked):
            yield asked.path, asked.arm, asked.ttft_seconds
        return
    for record in records:
        if record.actual.ttft_seconds is not None and not record.aborted:
            yield record.path, record.arm_label, record.actual.ttft_seconds


def _distribution(values: list[float]) -> Distribution:
    ordered = tuple(sorted(values))
    return Distribution(ordered, quantile(ordered, 0.5), *worst(ordered))


def _told(path: str, times: Times, demo: DemoSummary | None) -> Arm | Distribution:
    """The summary's figures where the run made some: a page repeats them and makes none of its own."""
    return demo.arms[path] if demo is not None and path in demo.arms else times[path]


def _strip(row: int, path: str, values: Sequence[float], told: Arm | Distribution) -> list[dict[str, Any]]:
    name, colour = _PATHS[path]
    step = max(1, math.ceil(len(values) / _MOST_POINTS))
    drawn = [value for value in values[::step] if value > 0]
    # Points step through their band by the golden ratio: spread evenly, and the same on every page.
    heights = [row + 0.42 * (((number * _GOLDEN) % 1.0) - 0.5) for number in range(len(drawn))]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": drawn,
            "y": heights,
            "customdata": [seconds(value) for value in drawn],
            "marker": {"color": colour, "size": 7, "opacity": 0.55, "line": {"width": 0}},
            "hovertemplate": f"{name}<br>%{{customdata}}<extra></extra>",
            "showlegend": False,
        }
    ]
    worst = "max" if told.p95_is_max else "p95"
    for name_of, value, reach, width in (
        ("p50", told.p50_seconds, 0.36, 3.0),
        (worst, told.p95_seconds, 0.22, 2.0),
    ):
        if value is not None and value > 0:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": [value, value],
                    "y": [row - reach, row + reach],
                    "line": {"color": "var(--ink)", "width": width},
                    "hovertemplate": f"{name}<br>{name_of} {seconds(value)}<extra></extra>",
                    "showlegend": False,
                }
            )
    return traces


def _lead(told: dict[str, Arm | Distribution]) -> str:
    pool, cold = told.get("pool_hit"), told.get("cold")
    if pool is None or cold is None or not pool.p50_seconds or not cold.p50_seconds:
        return ""
    ratio = cold.p50_seconds / pool.p50_seconds
    words = f"{ratio:.1f} times faster than" if ratio >= 1 else f"{1 / ratio:.1f} times slower than"
    return (
        f"A pool hit gave its first token after {seconds(pool.p50_seconds)} in the median, {words} "
        f"a cold prefill ({seconds(cold.p50_seconds)})."
    )


def _note(times: Times, demo: DemoSummary | None) -> str:
    words = ["Paths are never mixed; p95 of fewer than 20 requests is the largest."]
    if demo is not None:
        words.append(
            "Requests that measured the link, were throttled or obeyed a forced policy are not among them."
        )
        other = [
            _PATHS[path][0] for path, one in times.items() if path in demo.arms and one.n != demo.arms[path].n
        ]
        if other:
            words.append(f"The points do not number what the summary counted: {', '.join(other)}.")
    if any(one.n > _MOST_POINTS for one in times.values()):
        words.append(f"Of long strips an even choice of about {_MOST_POINTS} points is drawn.")
    return " ".join(words)
