"""A demo's two experiments: the bandwidth at which the rule turns, and three policies around it."""

from __future__ import annotations

import math
from typing import Any

from ...runs.demo_summary import DemoSummary
from .charts import SERIES, chart, label
from .content import Figure, Section, Table
from .numbers import count, seconds

__all__ = ["policies_section", "turn_section"]

_POLICIES = {"gate": "the gate", "always": "always load", "never": "never load"}


def turn_section(demo: DemoSummary | None) -> Section | None:
    """Bandwidths that were tried, what the rule did, and what had been predicted."""
    if demo is None or not demo.flips:
        return None
    traces: list[dict[str, Any]] = []
    rates: list[float] = []
    rows = []
    for number, flip in enumerate(demo.flips):
        predicted = flip["predicted_bytes_per_second"]
        tried = [(one["bytes_per_second"] / 1e6, one["loaded"]) for one in flip["tried"]]
        rates += [rate for rate, _ in tried] + [predicted / 1e6]
        for loaded, name, colour, symbol in (
            (True, "loaded", SERIES[0], "circle"),
            (False, "computed", SERIES[1], "diamond-open"),
        ):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "legendgroup": name,
                    "showlegend": number == 0,
                    "x": [rate for rate, was in tried if was is loaded],
                    "y": [number for _, was in tried if was is loaded],
                    "marker": {
                        "color": colour,
                        "size": 11,
                        "symbol": symbol,
                        "line": {"width": 2, "color": colour},
                    },
                    "hovertemplate": f"at %{{x:.2f}} MB/s {name}<extra></extra>",
                }
            )
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "predicted turn",
                "legendgroup": "turn",
                "showlegend": number == 0,
                "x": [predicted / 1e6] * 2,
                "y": [number - 0.34, number + 0.34],
                "line": {"color": "var(--ink)", "width": 3},
                "hovertemplate": "predicted: %{x:.2f} MB/s<extra></extra>",
            }
        )
        rows.append(
            (str(flip["replica"]), _rate(predicted), _rate(flip["accepted_at"]), _rate(flip["declined_at"]))
        )
    low, high = math.log10(min(rates)), math.log10(max(rates))
    return Section(
        name="turn",
        title="Where the rule turns to recompute",
        lead="The same prompt over ever slower links: to the left of the predicted bandwidth the gate should "
        "compute, to the right of it load.",
        figures=(
            Figure(
                name="turn-chart",
                chart=chart(
                    traces,
                    hovermode="closest",
                    xaxis={
                        "type": "log",
                        "range": [low - 0.05, high + 0.05],
                        "title": {"text": "bandwidth, MB/s"},
                        **_ticks(min(rates), max(rates)),
                    },
                    yaxis={
                        "tickvals": list(range(len(demo.flips))),
                        "ticktext": [f"replica {label(str(flip['replica']), 16)}" for flip in demo.flips],
                        "range": [-0.6, len(demo.flips) - 0.4],
                        "showgrid": False,
                        "fixedrange": True,
                    },
                ),
                alt="Bandwidths tried by replica: "
                + "; ".join(
                    f"{name} predicted {p}, loaded at {a}, computed at {d}" for name, p, a, d in rows
                ),
                axes="Bandwidth of the link (log scale)",
                height=150 + 60 * len(demo.flips),
            ),
        ),
        table=Table(
            ("replica", "predicted", "still loaded at", "computed at"), tuple(rows), frozenset({1, 2, 3})
        ),
        half=True,
    )


def policies_section(demo: DemoSummary | None) -> Section | None:
    """Total time and loss of the gate and of the two fixed policies."""
    if demo is None or not demo.policies:
        return None
    names = [_POLICIES.get(name, name) for name in demo.policies]
    found = list(demo.policies.values())
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "time well spent",
            "y": [label(name) for name in names],
            "x": [max(0.0, one.total_seconds - one.lost_seconds) for one in found],
            "marker": {"color": SERIES[0]},
            "hovertemplate": "%{y}: %{x:.1f} s<extra></extra>",
        },
        {
            "type": "bar",
            "orientation": "h",
            "name": "lost by wrong decisions",
            "y": [label(name) for name in names],
            "x": [one.lost_seconds for one in found],
            "marker": {"color": SERIES[5]},
            "hovertemplate": "%{y}: %{x:.1f} s lost<extra></extra>",
        },
    ]
    best = min(found, key=lambda one: one.total_seconds)
    winner = names[found.index(best)]
    return Section(
        name="policies",
        title="Bandwidths nobody tuned for",
        lead=f"Over the same {count(best.n)} prompts at unseen bandwidths, {winner} was the fastest.",
        figures=(
            Figure(
                name="policies-chart",
                chart=chart(
                    traces,
                    barmode="stack",
                    bargap=0.35,
                    hovermode="closest",
                    xaxis={"rangemode": "tozero", "ticksuffix": " s", "nticks": 6},
                    yaxis={"autorange": "reversed", "showgrid": False, "fixedrange": True},
                    legend={"traceorder": "normal"},
                ),
                alt="Bars of total time: "
                + "; ".join(
                    f"{name} {seconds(one.total_seconds)}, {seconds(one.lost_seconds)} lost"
                    for name, one in zip(names, found, strict=True)
                ),
                axes="Sum of times to first token",
                height=120 + 44 * len(found),
            ),
        ),
        table=Table(
            ("policy", "requests", "total", "lost by wrong decisions"),
            tuple(
                (name, count(one.n), seconds(one.total_seconds), seconds(one.lost_seconds))
                for name, one in zip(names, found, strict=True)
            ),
            frozenset({1, 2, 3}),
        ),
        half=True,
    )


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:.2f} MB/s"


def _ticks(low: float, high: float) -> dict[str, Any]:
    values = [
        digit * 10.0**exponent
        for exponent in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digit in (1, 1.5, 2, 3, 5, 7)
        if low / 1.1 <= digit * 10.0**exponent <= high * 1.1
    ]
    return {"tickvals": values, "ticktext": [f"{value:g}" for value in values]}
