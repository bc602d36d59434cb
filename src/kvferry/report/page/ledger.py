"""Where every prompt token came from, or why it was computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...outcomes import HITS, Outcome
from ...runs.decisions import DecisionRecord
from .charts import SERIES, stacked_bar
from .content import Figure, Section, Table
from .numbers import count, percent

__all__ = ["ledger_section", "not_computed", "totals"]

_WORDS = {
    Outcome.DEVICE_HIT: ("local hit", "the engine's own prefix cache held it"),
    Outcome.HOST_HIT: ("host hit", "loaded from host memory"),
    Outcome.DISK_HIT: ("disk hit", "loaded from a local disk"),
    Outcome.POOL_HIT: ("pool hit", "loaded from the shared pool"),
    Outcome.HANDOFF: ("hand-off", "handed over by the replica that did the prefill"),
    Outcome.NEVER_PUBLISHED: ("never published", "no tier has ever held it"),
    Outcome.EVICTED: ("evicted", "a tier held it once and dropped it"),
    Outcome.DECLINED: ("declined", "held and loadable; the gate chose to compute"),
    Outcome.FAILED: ("failed", "the tier failed while looking or loading"),
    Outcome.LATE: ("late", "the deadline passed first"),
    Outcome.CORRUPT: ("corrupt", "held, but failed verification"),
    Outcome.INCOMPATIBLE: ("incompatible", "held under another namespace"),
    Outcome.PLACEMENT: ("on another replica", "another replica held it locally"),
    Outcome.LOST_NODE: ("lost with its node", "it was on a storage node that went away"),
    Outcome.PARTIAL_BLOCK: ("partial block", "behind the last full block"),
    Outcome.NOT_CACHEABLE: ("not cacheable", "caching was off, or the engine has to compute it"),
    Outcome.ABORTED: ("aborted", "the request ended before its prompt was ready"),
}
_COLOURS = {
    Outcome.DEVICE_HIT: SERIES[2],
    Outcome.HOST_HIT: SERIES[6],
    Outcome.DISK_HIT: SERIES[7],
    Outcome.POOL_HIT: SERIES[0],
    Outcome.HANDOFF: SERIES[1],
    Outcome.NEVER_PUBLISHED: SERIES[4],
    Outcome.EVICTED: SERIES[1],
    Outcome.DECLINED: SERIES[3],
    Outcome.FAILED: SERIES[5],
    Outcome.LATE: SERIES[5],
    Outcome.CORRUPT: SERIES[5],
}


def totals(records: Sequence[DecisionRecord]) -> dict[Outcome, int]:
    """Tokens by outcome over all records."""
    found: dict[Outcome, int] = {}
    for record in records:
        for outcome, tokens in record.ledger.items():
            found[outcome] = found.get(outcome, 0) + tokens
    return found


def not_computed(found: Mapping[Outcome, int]) -> tuple[int, int]:
    """Tokens that came from a cache, and tokens that were handed over: a hand-off is no hit."""
    handed = found.get(Outcome.HANDOFF, 0)
    return sum(found.get(outcome, 0) for outcome in HITS) - handed, handed


def ledger_section(records: Sequence[DecisionRecord]) -> Section | None:
    """The books of all requests; None without tokens."""
    found = totals(records)
    total = sum(found.values())
    if not total:
        return None
    order = [outcome for outcome in _WORDS if found.get(outcome)]
    parts = [(_WORDS[outcome][0], found[outcome], _COLOURS.get(outcome, SERIES[7])) for outcome in order]
    cached, handed = not_computed(found)
    prompts = sum(record.prompt_tokens for record in records)
    sums = (
        f"The parts sum to the {count(prompts)} prompt tokens."
        if prompts == total
        else f"The parts sum to {count(total)}, the prompts to {count(prompts)}: the books do not balance."
    )
    return Section(
        name="ledger",
        title="Where every prompt token came from",
        lead=f"{percent(cached / total)} came from a cache"
        + (f", {percent(handed / total)} were handed over" if handed else "")
        + "; the rest was computed, each token for one reason.",
        figures=(
            Figure(
                name="ledger-chart",
                chart=stacked_bar(parts, total, "tokens"),
                alt="Bar of all prompt tokens: "
                + ", ".join(f"{n} {percent(t / total)}" for n, t, _ in parts),
                axes=f"Share of {count(total)} prompt tokens",
                height=96,
            ),
        ),
        table=Table(
            ("outcome", "tokens", "share", "meaning"),
            tuple(
                (
                    _WORDS[outcome][0],
                    count(found[outcome]),
                    percent(found[outcome] / total),
                    _WORDS[outcome][1],
                )
                for outcome in order
            ),
            frozenset({1, 2}),
            tuple(colour for *_, colour in parts),
        ),
        note=sums,
    )
