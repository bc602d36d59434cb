"""Time to the first token by how the prompt became ready: every request a point, never one mean of all.

Owns the strips, and the count of what they leave out. Which requests of a demo belong to which distribution
is the demo's own rule; the demo with vLLM has its arms for distributions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...runs.decisions import DecisionRecord
from ...runs.demo_summary import Arm, left_out
from ...runs.directory import RunDirectory
from ...runs.distribution import quantile, worst
from ...units import counted
from .charts import SERIES, chart, seconds_axis
from .content import Figure, Section, Table
from .experiment import Experiment
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
_ARMS = {
    "local": _PATHS["local_hit"],
    "pool": _PATHS["pool_hit"],
    "handoff": _PATHS["handoff"],
    "told": ("told to recompute", SERIES[3]),
    "broken": ("load fails half-way", SERIES[5]),
    "killed": ("pool killed", SERIES[7]),
    "cold": _PATHS["cold"],
}
"""Of a demo with vLLM, in the same order."""
_KINDS = {**_PATHS, **_ARMS}

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


class Times(msgspec.Struct, frozen=True):
    """What is drawn, and what is not."""

    kinds: dict[str, Distribution]
    """By path, or by arm of a demo with vLLM, in the order in which they are drawn."""
    left_out: dict[str, int]
    """Requests that are in none, by why, as the end of "one that"."""

    def get(self, *names: str) -> Distribution | None:
        """The first of these distributions that there is."""
        return next((self.kinds[name] for name in names if name in self.kinds), None)


class _Asked(msgspec.Struct):
    """What of a line of requests.jsonl is a point; commands that time something else leave it out."""

    path: str = ""
    ttft_seconds: float | None = None
    arm: str = ""


def times_of(
    records: Sequence[DecisionRecord],
    directory: RunDirectory,
    experiment: Experiment | None,
    *,
    skipped: Callable[[str], None] | None = None,
) -> Times:
    """Distributions as the client saw them, or as the replica did where no client left a record.

    `skipped` hears of lines that do not parse; without it they are a `FormatError`.
    """
    by_arm = experiment is not None and experiment.engine == "vllm"
    found: dict[str, list[float]] = {kind: [] for kind in (_ARMS if by_arm else _PATHS)}
    missing: Counter[str] = Counter()
    total = 0
    for path, arm, value in _points(records, directory, skipped):
        total += 1
        kind = arm if by_arm else path
        why = None if by_arm or experiment is None else left_out(path, arm)
        if why is None and kind not in found:
            why = f"became ready in another way ({kind})"
        if why is None:
            found[kind].append(value)
        else:
            missing[why] += 1
    if len(records) > total:
        missing["gave no client a first token"] = len(records) - total
    return Times({kind: _distribution(values) for kind, values in found.items() if values}, dict(missing))


def distributions_section(times: Times, experiment: Experiment | None) -> Section | None:
    """The strips with p50 and p95; None where no request had a first token."""
    if not times.kinds:
        return None
    arms = {} if experiment is None else experiment.arms
    told = {kind: _told(kind, times, arms) for kind in times.kinds}
    values = [value for one in times.kinds.values() for value in one.values if value > 0]
    low, high = min(values, default=1e-3), max(values, default=1.0)
    order = list(times.kinds)
    traces: list[dict[str, Any]] = []
    for row, kind in enumerate(order):
        traces += _strip(row, kind, times.kinds[kind].values, told[kind])
    figure = Figure(
        name="times-chart",
        chart=chart(
            traces,
            hovermode="closest",
            xaxis=seconds_axis(low, high, "time to first token"),
            yaxis={
                "tickvals": list(range(len(order))),
                "ticktext": [f"{_KINDS[kind][0]}  <b>{times.kinds[kind].n}</b>" for kind in order],
                "range": [len(order) - 0.45, -0.55],
                "showgrid": False,
                "fixedrange": True,
            },
        ),
        alt="Strips of times to first token: "
        + "; ".join(f"{_KINDS[kind][0]} median {optional_seconds(told[kind].p50_seconds)}" for kind in order),
        axes="Every request a point (log scale), with the number of requests; tall bar p50, short bar p95",
        height=90 + 58 * len(order),
    )
    rows = tuple(
        (
            _KINDS[kind][0],
            count(told[kind].n),
            optional_seconds(told[kind].p50_seconds),
            optional_seconds(told[kind].p95_seconds) + (" (max)" if told[kind].p95_is_max else ""),
        )
        for kind in order
    )
    return Section(
        name="times",
        title="Time to first token, by how the prompt became ready",
        lead=_lead(told),
        figures=(figure,),
        table=Table(("path", "requests", "p50", "p95"), rows, frozenset({1, 2, 3})),
        note=_note(times, arms),
    )


def _points(
    records: Sequence[DecisionRecord], directory: RunDirectory, skipped: Callable[[str], None] | None
) -> Iterator[tuple[str, str, float]]:
    seen = False
    if (directory.path / "requests.jsonl").is_file():
        for asked in directory.requests(_Asked, skipped=skipped):
            if asked.path and asked.ttft_seconds is not None:
                seen = True
                yield asked.path, asked.arm, asked.ttft_seconds
    if seen:
        return
    for record in records:
        if record.actual.ttft_seconds is not None and not record.aborted:
            yield record.path, record.arm_label, record.actual.ttft_seconds


def _distribution(values: list[float]) -> Distribution:
    ordered = tuple(sorted(values))
    return Distribution(ordered, quantile(ordered, 0.5), *worst(ordered))


def _told(kind: str, times: Times, arms: Mapping[str, Arm]) -> Arm | Distribution:
    """The summary's figures where the run made some: a page repeats them and makes none of its own."""
    return arms[kind] if kind in arms else times.kinds[kind]


def _strip(row: int, kind: str, values: Sequence[float], told: Arm | Distribution) -> list[dict[str, Any]]:
    name, colour = _KINDS[kind]
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
    pool, cold = told.get("pool_hit") or told.get("pool"), told.get("cold")
    if pool is None or cold is None or not pool.p50_seconds or not cold.p50_seconds:
        return ""
    ratio = cold.p50_seconds / pool.p50_seconds
    words = f"{ratio:.1f} times faster than" if ratio >= 1 else f"{1 / ratio:.1f} times slower than"
    return (
        f"A pool hit gave its first token after {seconds(pool.p50_seconds)} in the median, {words} "
        f"a cold prefill ({seconds(cold.p50_seconds)})."
    )


def _note(times: Times, arms: Mapping[str, Arm]) -> str:
    words = ["Paths are never mixed; p95 of fewer than 20 requests is the largest."]
    shown = sum(one.n for one in times.kinds.values())
    if times.left_out:
        missing = ", ".join(f"{count(n)} that {why}" for why, n in times.left_out.items())
        every = counted(shown + sum(times.left_out.values()), "request")
        words.append(f"{count(shown)} of {every} are shown; left out: {missing}.")
    other = [_KINDS[kind][0] for kind, one in times.kinds.items() if kind in arms and one.n != arms[kind].n]
    if other:
        words.append(f"The points do not number what the summary counted: {', '.join(other)}.")
    if any(one.n > _MOST_POINTS for one in times.kinds.values()):
        words.append(f"Of long strips an even choice of about {_MOST_POINTS} points is drawn.")
    return " ".join(words)
