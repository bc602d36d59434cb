"""Which prefixes it is all about, and what each publication policy would have written and served."""

from __future__ import annotations

from ...analysis.result import Analysis, ClassResult
from .charts import SERIES, chart
from .content import Figure, Section, Table
from .numbers import compact, count, percent, span

__all__ = ["classes_section", "publication_section"]

_MOST_ROWS = 40
_POLICIES = ("never", "declared", "second-touch", "all")


def classes_section(result: Analysis) -> Section | None:
    """The table of classes, the largest first."""
    if not result.classes:
        return None
    found = sorted(result.classes, key=lambda one: -one.input_tokens)
    shown = found[:_MOST_ROWS]
    what = "root of the block tree" if result.class_field == "root" else result.class_field
    note = (
        "Skew: share of reuses that fall on the most reused tenth of blocks. TTL keeps 99% of reuses. Never "
        "reused: tokens of full blocks that one request alone asked for."
    )
    if len(found) > len(shown):
        rest = sum(one.token_share for one in found[len(shown) :])
        note += (
            f" {count(len(found) - len(shown))} smaller classes, {percent(rest)} of tokens, are not shown."
        )
    return Section(
        name="classes",
        title="Classes of prefixes",
        lead=f"By {what}, the largest first.",
        table=Table(
            (
                "class",
                "requests",
                "tokens",
                "share",
                "hit",
                "unique",
                "skew",
                "reuse p50",
                "p95",
                "TTL",
                "never reused",
            ),
            tuple(_row(one) for one in shown),
            frozenset(range(1, 11)),
        ),
        note=note,
    )


def publication_section(result: Analysis) -> Section | None:
    """All classes together under each publication policy; None where none was tried."""
    sums = {name: [0, 0, 0] for name in _POLICIES}
    for one in result.classes:
        for found in one.publication:
            row = sums.setdefault(found.policy, [0, 0, 0])
            row[0] += found.written_tokens
            row[1] += found.served_tokens
            row[2] += found.never_read_tokens
    tried = {name for one in result.classes for name in (p.policy for p in one.publication)}
    rows = [(name, row[0], row[1], row[2]) for name, row in sums.items() if name in tried]
    if not any(written for _, written, _, _ in rows):
        return None
    names = [name.replace("-", " ") for name, *_ in rows]
    series = (
        ("served from the pool", [served for _, _, served, _ in rows], SERIES[2]),
        ("written and read", [written - unread for _, written, _, unread in rows], SERIES[0]),
        ("written, never read", [unread for *_, unread in rows], SERIES[4]),
    )
    traces = [
        {
            "type": "bar",
            "name": name,
            "x": names,
            "y": [amount / 1e6 for amount in amounts],
            "offsetgroup": "served" if number == 0 else "written",
            "marker": {"color": colour},
            "hovertemplate": f"%{{x}}: %{{y:,.1f}} M tokens {name}<extra></extra>",
        }
        for number, (name, amounts, colour) in enumerate(series)
    ]
    traces[2]["base"] = [amount / 1e6 for amount in series[1][1]]
    return Section(
        name="publication",
        title="What publishing would cost and serve",
        lead=_publication_lead(rows),
        figures=(
            Figure(
                name="publication-chart",
                chart=chart(
                    traces,
                    barmode="group",
                    bargap=0.3,
                    hovermode="closest",
                    xaxis={"showgrid": False, "type": "category"},
                    yaxis={"rangemode": "tozero", "nticks": 6},
                ),
                alt="Bars of tokens served and written by publication policy: "
                + "; ".join(f"{n}: {compact(s)} served, {compact(w)} written" for n, w, s, _ in rows),
                axes="Million tokens in full blocks within declared boundaries, by what enters the pool",
                height=320,
                numbers=Table(
                    ("publish", "written", "served", "never read"),
                    tuple((n, count(w), count(s), count(u)) for n, w, s, u in rows),
                    frozenset({1, 2, 3}),
                ),
            ),
        ),
        half=True,
    )


def _publication_lead(rows: list[tuple[str, int, int, int]]) -> str:
    found = {name: (written, served, unread) for name, written, served, unread in rows}
    if "all" not in found or "second-touch" not in found or not found["all"][0] or not found["all"][1]:
        return ""
    all_, second = found["all"], found["second-touch"]
    return (
        f"Publishing all that declared boundaries permit writes {compact(all_[0])} tokens, "
        f"{percent(all_[2] / all_[0])} of them never read. Publishing at the second touch writes "
        f"{percent(second[0] / all_[0])} of that and serves "
        f"{percent(second[1] / all_[1])} of its hits."
    )


def _row(one: ClassResult) -> tuple[str, ...]:
    return (
        one.name,
        count(one.requests),
        compact(one.input_tokens),
        percent(one.token_share),
        percent(one.hit_by_token),
        compact(one.unique_tokens),
        percent(one.top_tenth_share),
        _span(one.interval_p50_seconds),
        _span(one.interval_p95_seconds),
        _span(one.ttl_seconds),
        compact(one.never_read_tokens),
    )


def _span(seconds: float | None) -> str:
    return "–" if seconds is None else span(seconds)
