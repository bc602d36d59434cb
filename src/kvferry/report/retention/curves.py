"""What changes along something: the continuation, the position, what is re-read, and hand-offs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...runs.retention_summary import Bin, Refused, Retention
from ...runs.retention_summary import Figure as Found
from ..page.charts import chart
from ..page.content import Figure, Section, Table
from .figures import COLOURS, NAMES, brief, in_order, line, shown

__all__ = ["along_sections", "beyond_section", "hold_back_section", "longer_section", "turns_section"]

_AGREEMENT: dict[str, Any] = {"range": [0, 1.04], "nticks": 6}


def along_sections(found: Retention) -> list[Section]:
    """Agreement and likelihood by the token's number in the continuation."""
    if not found.curve:
        return []
    xs = _tokens(found.curve)
    names = in_order(name for one in found.curve for name in one.top1)
    agreement = [
        _along(name, xs, [one.top1[name] for one in found.curve]) for name in names if name != "target"
    ]
    likelihood = [
        _along(name, xs, [one.nll_per_token[name] for one in found.curve])
        for name in in_order(name for one in found.curve for name in one.nll_per_token)
    ]
    numbers = Table(
        ("tokens", *(NAMES[name] for name in names)),
        tuple(
            (x, *(brief(one.top1.get(name)) for name in names))
            for x, one in zip(xs, found.curve, strict=True)
        ),
        frozenset(range(1, 1 + len(names))),
    )
    nlls = Table(
        ("tokens", *(NAMES[name] for name in names)),
        tuple(
            (x, *(brief(one.nll_per_token.get(name)) for name in names))
            for x, one in zip(xs, found.curve, strict=True)
        ),
        frozenset(range(1, 1 + len(names))),
    )
    return [
        Section(
            name="horizon-agreement",
            title="Agreement along the continuation",
            lead="The share of tokens whose likeliest next one is the target's own.",
            figures=(
                Figure(
                    name="horizon-agreement-chart",
                    chart=chart(agreement, hovermode="closest", xaxis=_category(xs), yaxis=_AGREEMENT),
                    alt=_alt("Top-1 agreement", numbers),
                    axes="Top-1 agreement with the target, by the token's number in the continuation",
                    height=360,
                    numbers=numbers,
                ),
            ),
            half=True,
        ),
        Section(
            name="horizon-nll",
            title="Likelihood along the continuation",
            lead="What the continuation itself tells comes to the help of every arm: curves near each other "
            "at the end say little about the map.",
            figures=(
                Figure(
                    name="horizon-nll-chart",
                    chart=chart(
                        likelihood,
                        hovermode="closest",
                        xaxis=_category(xs),
                        yaxis={"rangemode": "tozero", "nticks": 6},
                    ),
                    alt=_alt("NLL a token", nlls),
                    axes="NLL, nats a token, by the token's number in the continuation",
                    height=360,
                    numbers=nlls,
                ),
            ),
            half=True,
        ),
    ]


def beyond_section(found: Retention) -> Section | None:
    """The same items inside the calibrated positions and beyond them."""
    beyond = found.beyond
    title = "Beyond the calibrated positions"
    if isinstance(beyond, Refused):
        return (
            Section(name="beyond", title=title, lead=f"Not measured: {beyond.reason}.")
            if found.curve
            else None
        )
    names = [name for name in in_order(beyond.top1) if name != "target"]
    xs = _tokens(beyond.curve)
    inside = [one for one in found.curve if one.first <= beyond.curve[-1].first]
    traces = []
    for name in names:
        traces += [
            line(f"{NAMES[name]}, inside", xs, [one.top1[name] for one in inside], COLOURS[name]),
            line(
                f"{NAMES[name]}, beyond",
                xs,
                [one.top1[name] for one in beyond.curve],
                COLOURS[name],
                dash="dash",
                symbol="diamond-open",
            ),
        ]
    rows = tuple(
        (
            NAMES[name],
            shown(found.top1["32"].get(name)),
            shown(beyond.top1[name]),
            shown(beyond.lost_top1[name]),
            shown(beyond.kl[name]),
        )
        for name in names
    )
    calibrated = found.map.calibrated_positions
    return Section(
        name="beyond",
        title=title,
        lead=f"The same items with their first token at position {beyond.offset:,}"
        + (f"; the map was calibrated on positions 0 to {calibrated - 1:,}." if calibrated else ".")
        + f" Mapped loses {shown(beyond.lost_top1['mapped'])} of agreement.",
        figures=(
            Figure(
                name="beyond-chart",
                chart=chart(traces, hovermode="closest", xaxis=_category(xs), yaxis=_AGREEMENT),
                alt="Agreement over 32 tokens inside and beyond: "
                + "; ".join(f"{row[0]} {row[1]} and {row[2]}" for row in rows),
                axes="Top-1 agreement with the target, by the token's number in the continuation",
                height=340,
            ),
        ),
        table=Table(
            ("arm", "top-1 at 32, inside", "beyond", "lost", "KL over 32, beyond"),
            rows,
            frozenset({1, 2, 3, 4}),
        ),
    )


def longer_section(found: Retention) -> Section | None:
    """Items whose contexts are longer than the calibrated positions, which are in no other section."""
    longer = found.longer
    if isinstance(longer, Refused):
        return None
    answers = longer.accuracy.get("all", {})
    names = in_order([*longer.nll_per_character, *answers])
    return Section(
        name="longer",
        title="Contexts longer than the calibrated positions",
        lead=f"{longer.items} items of {longer.documents} documents, contexts of {longer.shortest:,} to "
        f"{longer.longest:,} tokens; the map was calibrated on {longer.calibrated:,} positions.",
        table=Table(
            ("arm", "NLL a character", "KL", "top-1 at 32", "answers right"),
            tuple(
                (
                    NAMES[name],
                    shown(longer.nll_per_character.get(name)),
                    shown(longer.kl.get(name)),
                    shown(longer.top1.get(name)),
                    shown(answers.get(name)),
                )
                for name in names
            ),
            frozenset({1, 2, 3, 4}),
        ),
    )


def hold_back_section(found: Retention) -> Section | None:
    """What re-reading the last tokens of the context brings, with and without mapped KV."""
    held = [one for one in found.hold_back if one.top1]
    if not held:
        return None
    xs = [f"{one.tokens}" for one in held]
    traces = [
        line(NAMES[name], xs, [one.top1[name] for one in held], COLOURS[name]) for name in ("mapped", "none")
    ]
    table = Table(
        ("re-read", "mapped", "no context", "mapped KV adds, nats"),
        tuple(
            (str(one.tokens), brief(one.top1["mapped"]), brief(one.top1["none"]), brief(one.gain))
            for one in held
        ),
        frozenset({0, 1, 2, 3}),
    )
    return Section(
        name="hold-back",
        title="The receiver re-reads the last tokens",
        lead="Where both lines are high, it is the re-reading that helps, not the map.",
        figures=(
            Figure(
                name="hold-back-chart",
                chart=chart(traces, hovermode="closest", xaxis=_category(xs), yaxis=_AGREEMENT),
                alt=_alt("Agreement over 32 tokens", table),
                axes="Top-1 agreement over 32 tokens, by tokens re-read",
                height=300,
            ),
        ),
        table=table,
        half=True,
    )


def turns_section(found: Retention) -> Section | None:
    """A conversation that changes hands, and its slope."""
    turns = found.turns
    title = "Source, target, source: hand-off after hand-off"
    if isinstance(turns, Refused):
        return Section(name="turns", title=title, lead=f"Not measured: {turns.reason}.", half=True)
    xs = [str(one.handoffs) for one in turns.turns]
    table = Table(
        ("hand-offs", "NLL above the target's", "KL", "top-1"),
        tuple(
            (str(one.handoffs), brief(one.nll_difference), brief(one.kl), brief(one.top1))
            for one in turns.turns
        ),
        frozenset({0, 1, 2, 3}),
    )
    return Section(
        name="turns",
        title=title,
        lead=f"Each hand-off adds {shown(turns.slope_nll)} nats a token; errors add up where that interval "
        "lies above 0.",
        figures=(
            Figure(
                name="turns-chart",
                chart=chart(
                    [
                        line(
                            "NLL above the target's",
                            xs,
                            [one.nll_difference for one in turns.turns],
                            COLOURS["mapped"],
                        ),
                        line(
                            "KL",
                            xs,
                            [one.kl for one in turns.turns],
                            COLOURS["none"],
                            dash="dot",
                            symbol="diamond",
                        ),
                    ],
                    hovermode="closest",
                    xaxis=_category(xs),
                    yaxis={"nticks": 6, "zeroline": True},
                ),
                alt=_alt("What the target's turns lose", table),
                axes="Nats a token of the target's turn, by hand-offs before it",
                height=300,
            ),
        ),
        table=table,
        note=f"Turns of about {turns.turn_tokens} tokens; agreement changes by {shown(turns.slope_top1)} "
        "with each hand-off.",
        half=True,
    )


def _along(name: str, xs: Sequence[str], figures: Sequence[Found]) -> dict[str, Any]:
    """Controls without whiskers: seven sets of them hide each other, and the table has them all."""
    return line(NAMES[name], xs, figures, COLOURS[name], whiskers=name in ("target", "mapped"))


def _tokens(bins: Sequence[Bin]) -> list[str]:
    return [str(one.first) if one.first == one.last else f"{one.first}–{one.last}" for one in bins]


def _category(xs: Sequence[str]) -> dict[str, Any]:
    return {"type": "category", "categoryarray": list(xs), "showgrid": False}


def _alt(what: str, table: Table) -> str:
    rows = "; ".join(
        f"{row[0]}: "
        + ", ".join(f"{name} {cell}" for name, cell in zip(table.columns[1:], row[1:], strict=True))
        for row in table.rows
    )
    return f"{what}, by {table.columns[0]}. {rows}"
