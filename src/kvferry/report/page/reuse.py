"""How long blocks have to live: reused tokens by the time since their last use."""

from __future__ import annotations

from itertools import accumulate

from ...analysis.result import Analysis
from .charts import SERIES, chart
from .content import Figure, Section, Table
from .numbers import count, percent, span

__all__ = ["intervals_section"]


def intervals_section(result: Analysis) -> Section | None:
    """The histogram of reuse intervals; None where nothing was reused."""
    bins = result.intervals
    total = sum(one.tokens for one in bins)
    if not total:
        return None
    last = max(number for number, one in enumerate(bins) if one.tokens)
    first = min(number for number, one in enumerate(bins) if one.tokens)
    bins = bins[first : last + 1]
    shares = [one.tokens / total for one in bins]
    reached = list(accumulate(shares))
    names = [f"{_short(one.from_seconds)} to {_short(one.to_seconds)}" for one in bins]
    # A bar stands between its two limits; ticks name limits, every second or so.
    every = max(1, -(-len(bins) // 8))
    ticks = range(0, len(bins) + 1, every)
    limits = [one.from_seconds for one in bins] + [bins[-1].to_seconds]
    trace = {
        "type": "bar",
        "x": [number + 0.5 for number in range(len(bins))],
        "y": [100.0 * share for share in shares],
        "width": 0.92,
        "customdata": [[name, percent(upto)] for name, upto in zip(names, reached, strict=True)],
        "marker": {"color": SERIES[0]},
        "name": "reused tokens",
        "showlegend": False,
        "hovertemplate": "%{customdata[0]}: %{y:.1f}% of reused tokens<br>"
        "a life of that length keeps %{customdata[1]}<extra></extra>",
    }
    half, most = _reaches(reached, 0.5), _reaches(reached, 0.95)
    lead = (
        f"Half of the reused tokens come back within {_short(bins[half].to_seconds)}, 95% within "
        f"{_short(bins[most].to_seconds)}: a longer life holds memory for the rest."
    )
    figure = Figure(
        name="intervals-chart",
        chart=chart(
            [trace],
            hovermode="closest",
            bargap=0,
            xaxis={
                "tickvals": list(ticks),
                "ticktext": [_short(limits[number]) for number in ticks],
                "range": [-0.1, len(bins) + 0.1],
                "showgrid": False,
                "title": {"text": "time since the last use"},
            },
            yaxis={"ticksuffix": "%", "rangemode": "tozero", "nticks": 6},
        ),
        alt=f"Histogram of reuse intervals. {lead}",
        axes="Share of reused tokens, by the time since their last use (log bins)",
        height=320,
        numbers=Table(
            ("since last use", "tokens", "share", "up to here"),
            tuple(
                (name, count(one.tokens), percent(share), percent(upto))
                for name, one, share, upto in zip(names, bins, shares, reached, strict=True)
            ),
            frozenset({1, 2, 3}),
        ),
    )
    return Section(
        name="intervals", title="How long a block has to live", lead=lead, figures=(figure,), half=True
    )


def _reaches(reached: list[float], share: float) -> int:
    return next((number for number, upto in enumerate(reached) if upto >= share), len(reached) - 1)


def _short(seconds: float) -> str:
    return "0" if seconds == 0 else "∞" if seconds == float("inf") else span(seconds)
