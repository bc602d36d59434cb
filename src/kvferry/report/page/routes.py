"""Why tokens miss, and what choosing a replica well gives before anything is shared."""

from __future__ import annotations

from typing import Any

from ...analysis.result import Analysis, Misses
from .charts import SERIES, chart, label, percent_axis, stacked_bar
from .content import Figure, Section, Table
from .numbers import count, percent, points

__all__ = ["label_of", "misses_section", "routing_section"]

_CAUSES = (
    ("hit", "held", SERIES[2], "the replica holds it", "nothing to do"),
    (
        "evicted",
        "evicted",
        SERIES[1],
        "an earlier request had it; no replica holds it any more",
        "memory, or another policy",
    ),
    ("placement", "on another replica", SERIES[3], "another replica holds it", "routing, or a pool"),
    ("partial_block", "behind the last full block", SERIES[7], "never loaded", "smaller blocks"),
    (
        "never_seen",
        "never seen",
        SERIES[4],
        "no earlier request had it",
        "prompt assembly (kvferry trace lint), or nothing",
    ),
)


def misses_section(result: Analysis) -> Section | None:
    """Every prompt token by where it came from, or why not."""
    misses = result.misses
    if misses is None:
        return None
    amounts = {name: getattr(misses, name) for name, *_ in _CAUSES}
    total = sum(amounts.values())
    under = f"under {label_of(result.misses_routing)} routing" if result.misses_routing else "with one cache"
    rows = tuple(
        (words, count(amounts[name]), percent(amounts[name] / total if total else 0.0), why, mends)
        for name, words, _, why, mends in _CAUSES
    )
    mended = (misses.evicted + misses.placement) / total if total else 0.0
    figure = Figure(
        name="misses-chart",
        chart=stacked_bar(
            [(words, amounts[name], colour) for name, words, colour, *_ in _CAUSES], total, "tokens"
        ),
        alt="Bar of all prompt tokens by cause: "
        + ", ".join(
            f"{words} {percent(amounts[name] / total if total else 0.0)}" for name, words, *_ in _CAUSES
        ),
        axes=f"Share of all prompt tokens, {under}",
        height=96,
    )
    return Section(
        name="misses",
        title="Why tokens miss",
        lead=f"{percent(mended)} of prompt tokens were seen before and miss all the same: evicted, or held "
        "elsewhere. That is what capacity, routing or a pool can win."
        if mended >= 0.0005
        else "What was seen before is found again: no capacity, routing or pool can win more.",
        figures=(figure,),
        table=Table(
            ("cause", "tokens", "share", "meaning", "what mends it"),
            rows,
            frozenset({1, 2}),
            tuple(colour for _, _, colour, *_ in _CAUSES),
        ),
        note=f"The parts sum to the {count(total)} prompt tokens.",
    )


def routing_section(result: Analysis) -> Section | None:
    """Local routings side by side, and the pool against the best of them."""
    if not result.routing:
        return None
    found = sorted(result.routing.items(), key=lambda item: item[1].hit_by_token)
    gain = result.pool_gain
    names = [label_of(name) for name, _ in found]
    values = [routing.hit_by_token for _, routing in found]
    colours = [SERIES[0] if gain is not None and name == gain.best_local else SERIES[4] for name, _ in found]
    if gain is not None:
        names.append("one shared pool")
        values.append(gain.pool_hit_by_token)
        colours.append(SERIES[2])
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "x": [100.0 * value for value in values],
        "y": [label(name, 28) for name in names],
        "text": [percent(value) for value in values],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": colours},
        "showlegend": False,
        "hovertemplate": "%{y}: %{x:.1f}% of prompt tokens<extra></extra>",
    }
    figure = Figure(
        name="routing-chart",
        chart=chart(
            [trace],
            hovermode="closest",
            bargap=0.3,
            # Room for the number behind the longest bar.
            xaxis=percent_axis(1.12 * max(values)),
            yaxis={"showgrid": False, "fixedrange": True},
        ),
        alt="Bars of hit ratio by token: "
        + ", ".join(f"{n} {percent(v)}" for n, v in zip(names, values, strict=True)),
        axes="Hit ratio by token over all replicas",
        height=70 + 36 * len(names),
    )
    return Section(
        name="routing",
        title="What routing gives, and what a pool adds",
        lead=_lead(result),
        figures=(figure,),
        table=Table(
            ("routing", "by token", "useful tokens", "busiest replica", "evicted", "on another replica"),
            tuple(
                (
                    label_of(name),
                    percent(routing.hit_by_token),
                    percent(routing.hit_useful_tokens),
                    percent(routing.busiest_share),
                    percent(_share(routing.misses, routing.misses.evicted)),
                    percent(_share(routing.misses, routing.misses.placement)),
                )
                for name, routing in reversed(found)
            ),
            frozenset({1, 2, 3, 4, 5}),
        ),
        note=f"In order of arrival, without queues, {result.replicas} replicas. Busiest replica: its share "
        f"of the tokens to compute; {percent(1 / max(1, result.replicas))} would be even.",
    )


def label_of(name: str | None) -> str:
    """A routing's name in words."""
    return (name or "").replace("_", " ").replace("-", " ")


def _lead(result: Analysis) -> str:
    gain = result.pool_gain
    if gain is None:
        return ""
    words = (
        f"A pool adds {points(gain.pool_hit_by_token - gain.best_local_hit_by_token, sign=False)} to "
        f"{label_of(gain.best_local)}, the best local routing"
    )
    if gain.ratio is not None:
        words += f" ({gain.ratio:.2f} times its hits)"
    if gain.against_random is not None and gain.ratio is not None and gain.against_random > 1.1 * gain.ratio:
        words += f"; against random routing it would look like {gain.against_random:.1f} times"
    return words + "."


def _share(misses: Misses, tokens: int) -> float:
    total = misses.hit + misses.never_seen + misses.evicted + misses.placement + misses.partial_block
    return tokens / total if total else 0.0
