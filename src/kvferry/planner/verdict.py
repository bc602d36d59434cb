"""Local cache, routing or pool: the verdict in a sentence, and what it leaves open.

The cheapest that gets nearly everything wins: a local cache needs nothing new, routing needs a gateway, a
pool needs memory, a network and somebody who looks after them. A pool is never recommended outright from a
trace: what publishing and evicting cost other requests is not known before a load test, and the sentence says
so.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from ..analysis.result import Analysis
from ..cost.profile import Profile
from ..errors import UsageError
from ..units import format_rate
from .benefit import ClassBenefit, Link, benefits, link_of

__all__ = ["Plan", "Verdict", "demo_sentence", "plan"]

Verdict = Literal["nothing", "local", "routing", "pool"]
_WORTH = 0.02
"""Share of all input tokens below which a change is not worth its trouble."""
_BLIND = ("random", "round-robin", "least-loaded")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with this traffic, this model and these replicas."""

    trace: str
    model: str | None
    host: str
    """Where the profile was measured."""
    link: Link
    bytes_per_token: float
    replicas: int
    capacity_tokens: int | None
    """Of one replica; None: no limit was given."""
    blind_hit: float
    """Useful-token hits of replicas without a routing that knows prefixes: the best of these."""
    local_hit: float
    """The same under the best local routing."""
    local_routing: str | None
    pool_hit: float
    infinite_hit: float
    classes: tuple[ClassBenefit, ...]
    link_busy_share: float
    """How busy a replica's link would be with all loads of the rule; above 1 it cannot carry them, and
    benefit and verdict count what it can."""
    benefit_seconds_per_second: float
    """Sum of rate x E over the classes: an upper bound."""
    break_even_bytes_per_second: float | None
    """Over all classes; None without remote hits, infinite where no link is fast enough."""
    unknown: tuple[str, ...]
    verdict: Verdict
    proven: bool
    """False for a pool: it waits for a load test."""
    sentence: str


def plan(
    analysis: Analysis,
    profile: Profile,
    *,
    tier: str | None = None,
    capacity_tokens: int | None = None,
    decoding: float = 8.0,
) -> Plan:
    """The plan for an analysed trace. Raises `UsageError` where trace or profile lack what it needs."""
    if analysis.hit is None or analysis.misses is None:
        raise UsageError(f"{analysis.path}: has lengths only; a plan needs a trace with blocks")
    if analysis.bytes_per_token is None:
        raise UsageError("plan: say --model, so that tokens have a weight in bytes")
    link = link_of(profile, tier)
    classes = benefits(analysis, profile, link, bytes_per_token=analysis.bytes_per_token, decoding=decoding)
    whole = max(1, analysis.input_tokens)
    local = analysis.misses.hit / whole
    blind = max(
        (analysis.routing[n].hit_useful_tokens for n in _BLIND if n in analysis.routing), default=local
    )
    remote = sum(
        round(one.remote_share * c.input_tokens) for one, c in zip(classes, analysis.classes, strict=True)
    )
    loaded = sum(one.loaded_tokens for one in classes) / whole
    total = sum(one.benefit_seconds_per_second for one in classes)
    # A link carries so many loads and no more; each replica is taken to have one like the profile's.
    busy = sum(one.link_busy_share for one in classes) / analysis.replicas
    loaded, total = loaded / max(1.0, busy), total / max(1.0, busy)
    threshold = _threshold(classes)
    verdict = _verdict(analysis.hit.useful_tokens, blind, local, loaded, total)
    unknown = [
        "P_write: what publishing takes from other requests",
        "P_eviction: what is evicted to make room, and was wanted",
    ]
    unknown.append(
        f"whether the profile of {profile.host} is of this model: another model's prefill times do not apply"
    )
    if any(one.stall_seconds is None for one in classes):
        unknown.append("P_stall: the profile saw too few loads beside decoding")
    if busy > 0.5:
        unknown.append(f"queues: loads would keep a replica's link busy for {busy:.0%} of the time")
    unknown.append("whether the pool's own side serves all replicas at the rate that one was measured with")
    if not link.measured:
        unknown.append(f"the rate of the link to {link.tier}: not measured in this profile")
    if capacity_tokens is None:
        unknown.append("the replicas' own capacity: taken as without limit; say --capacity")
    return Plan(
        trace=analysis.path,
        model=analysis.model,
        host=profile.host,
        link=link,
        bytes_per_token=analysis.bytes_per_token,
        replicas=analysis.replicas,
        capacity_tokens=capacity_tokens,
        blind_hit=blind,
        local_hit=local,
        local_routing=analysis.misses_routing,
        pool_hit=local + remote / whole,
        infinite_hit=analysis.hit.useful_tokens,
        classes=classes,
        link_busy_share=busy,
        benefit_seconds_per_second=total,
        break_even_bytes_per_second=threshold,
        unknown=tuple(unknown),
        verdict=verdict,
        proven=verdict != "pool",
        sentence=_sentence(verdict, analysis, blind, local, local + remote / whole, total, threshold, link),
    )


def demo_sentence(break_even_bytes_per_second: float) -> str:
    """What two replicas that share prefixes should do, from the bandwidth at which the rule turned.

    For the demo: its prefixes are of one kind, so routing and classes do not come into it.
    """
    turn = f"{break_even_bytes_per_second / 1e6:.1f} MB/s"
    return (
        f"Share these prefixes over any link clearly faster than {turn}, leave the gate on, and below that "
        "give each replica enough local cache instead."
    )


def _verdict(infinite: float, blind: float, local: float, loaded: float, benefit: float) -> Verdict:
    if infinite < _WORTH:
        return "nothing"
    if loaded >= _WORTH and benefit > 0.0:
        return "pool"
    return "routing" if local - blind >= _WORTH else "local"


def _threshold(classes: tuple[ClassBenefit, ...]) -> float | None:
    """Break-even over all classes: each weighs by the bytes it would load, which its own figure has in it."""
    known = [one for one in classes if one.break_even_bytes_per_second is not None]
    if not known:
        return None
    # bytes / B is the time that is left for a class's bytes; times add up, so B is a harmonic mean.
    bytes_ = [one.remote_share * one.requests_per_second for one in known]
    time = sum(
        0.0
        if math.isinf(one.break_even_bytes_per_second or 0.0)
        else weight / (one.break_even_bytes_per_second or 1.0)
        for one, weight in zip(known, bytes_, strict=True)
    )
    return sum(bytes_) / time if time > 0.0 else math.inf


def _sentence(
    verdict: Verdict,
    analysis: Analysis,
    blind: float,
    local: float,
    pool: float,
    benefit: float,
    threshold: float | None,
    link: Link,
) -> str:
    routing = analysis.misses_routing
    more = pool - local
    if verdict == "nothing":
        return (
            f"Nothing to share: even a cache that forgets nothing would hit {pool:.1%} of the tokens; look "
            "at how prompts are assembled (kvferry trace lint) before buying memory."
        )
    no_pool = (
        f"what a pool would add to that ({more:.1%}) "
        f"{'is too little to matter' if more < _WORTH else 'does not pay on this link'}"
    )
    if verdict == "local":
        return (
            f"Local cache is enough: replicas hit {local:.1%} of the tokens themselves, and {no_pool}"
            f"{_room(analysis)}."
        )
    if verdict == "routing":
        return (
            f"Route by prefix: {routing} hits {local:.1%} of the tokens in the replicas' own memory against "
            f"{blind:.1%} without looking at prefixes; {no_pool}{_room(analysis)}."
        )
    where = (
        f"above {format_rate(threshold)}"
        if threshold is not None and math.isfinite(threshold)
        else "on this link"
    )
    today = f"under {routing} routing" if routing else "in local caches"
    return (
        f"A pool may pay, and that is not proven: it would hit {pool:.1%} of the tokens against {local:.1%} "
        f"{today}, and spare up to {benefit:.2g} s of prefill a second {where} ({link.tier} here: "
        f"{'unknown' if link.bytes_per_second is None else format_rate(link.bytes_per_second)}). What "
        "writing and evicting take is unknown: no verdict for it before a load test with limited capacity "
        "and the real mix of lengths. Until then, "
        f"{'route by prefix' if routing else 'keep the local caches'}."
    )


def _room(analysis: Analysis) -> str:
    """What more memory would do, where much was evicted."""
    mark = next((mark for mark in analysis.marks if mark.name.startswith("90 %")), None)
    if mark is None or analysis.misses is None or analysis.misses.evicted < _WORTH * analysis.input_tokens:
        return ""
    return f"; {mark.capacity_tokens:,} tokens in one cache would hold nine tenths of all hits"
