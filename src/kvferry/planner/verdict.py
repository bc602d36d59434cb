"""Local cache, routing or pool: the verdict in a sentence, and what it leaves open.

The cheapest that gets nearly everything wins: a local cache needs nothing new, routing needs a gateway, a
pool needs memory, a network and somebody who looks after them. A pool is never recommended outright from a
trace: what publishing and evicting cost other requests is not known before a load test, and the sentence says
so. Nor is one refused for a link that nobody has measured.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from ..analysis.result import Analysis
from ..cost.profile import Profile
from ..errors import FormatError, UsageError
from ..units import counted, format_rate, format_seconds
from .benefit import ClassBenefit, Link, benefits, link_of

__all__ = ["Plan", "Verdict", "demo_sentence", "plan"]

Verdict = Literal["nothing", "local", "routing", "pool"]
_WORTH = 0.02
"""A change is not worth its trouble below this share of all input tokens, or of a replica's time."""
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
    prefill_load: float | None
    """Seconds for which each replica would have to prefill in a second of this traffic, behind the best local
    routing and without a pool: above 1 they cannot serve it, however they share. None: the trace takes no
    time."""
    link_busy_share: float | None
    """How busy a replica's link would be with all loads of the rule; above 1 it cannot carry them, and
    benefit and verdict count what it can. None: the link was never measured."""
    benefit_seconds_per_second: float | None
    """Sum of rate x E over the classes: an upper bound. None: the link was never measured."""
    most_seconds_per_second: float
    """The same if loads took no time."""
    break_even_bytes_per_second: float | None
    """Over all classes; None without remote hits, infinite where no link is fast enough."""
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]
    """What makes the figures doubtful, a sentence each."""
    verdict: Verdict
    """What to do now."""
    proven: bool
    """False for a pool, which waits for a load test, and where a pool might pay on a link that was never
    measured."""
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
    if not analysis.requests:
        raise FormatError(analysis.recommendation)
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
    most = sum(one.most_seconds_per_second for one in classes)
    load = sum(one.prefill_seconds_per_second for one in classes) / analysis.replicas
    threshold = _threshold(classes)
    busy, total, loaded = _carried(classes, analysis.replicas)
    gain = _Gain(
        hit=analysis.hit.useful_tokens,
        blind=blind,
        local=local,
        more=remote / whole,
        # Replicas that are asked for more than they can do serve less traffic, not a second in less time.
        most=most / analysis.replicas / max(1.0, load),
        loaded=None if loaded is None else loaded / whole,
        spared=None if total is None else total / analysis.replicas / max(1.0, load),
    )
    verdict = _verdict(gain)
    waits = gain.matters and not link.measured and threshold is not None and math.isfinite(threshold)
    unknown = [
        "P_write: what publishing takes from other requests",
        "P_eviction: what is evicted to make room, and was wanted",
    ]
    unknown.append(
        f"whether the profile of {profile.host} is of this model: another model's prefill times do not apply"
    )
    if total is not None and any(one.stall_seconds is None for one in classes):
        unknown.append("P_stall: the profile saw too few loads beside decoding")
    if busy is not None and busy > 0.5:
        unknown.append(f"queues: loads would keep a replica's link busy for {busy:.0%} of the time")
    unknown.append("whether the pool's own side serves all replicas at the rate that one was measured with")
    if not link.measured:
        alone = (
            ", so that the break-even is for a link without setup" if link.bytes_per_second is None else ""
        )
        unknown.append(f"the rate of the link to {link.tier}: not measured in this profile{alone}")
    # Such as a log without times, or caches without a limit.
    unknown += analysis.cannot
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
        prefill_load=load if analysis.span_seconds > 0 else None,
        link_busy_share=busy,
        benefit_seconds_per_second=total,
        most_seconds_per_second=most,
        break_even_bytes_per_second=threshold,
        unknown=tuple(unknown),
        warnings=_warnings(load, analysis.replicas),
        verdict=verdict,
        proven=verdict != "pool" and not waits,
        sentence=_sentence(verdict, analysis, gain, total, threshold, link),
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


class _Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What the verdict goes by: shares of all input tokens, and of a replica's time."""

    hit: float
    """By a cache that forgets nothing."""
    blind: float
    local: float
    more: float
    """What a pool would add to `local`."""
    most: float
    """The share of a replica's time that this takes to compute."""
    loaded: float | None
    """Of `more`, what the rule would load and the link can carry; None: the link was never measured."""
    spared: float | None
    """Of `most`, what loading would spare."""

    @property
    def matters(self) -> bool:
        """Whether a pool would be worth its trouble on a link that takes no time."""
        return self.more >= _WORTH or self.most >= _WORTH

    @property
    def pays(self) -> bool:
        """Whether it is, on this link."""
        if self.loaded is None or self.spared is None or self.spared <= 0.0:
            return False
        return self.loaded >= _WORTH or self.spared >= _WORTH


def _verdict(gain: _Gain) -> Verdict:
    if gain.hit < _WORTH:
        return "nothing"
    if gain.pays:
        return "pool"
    return "routing" if gain.local - gain.blind >= _WORTH else "local"


def _carried(
    classes: tuple[ClassBenefit, ...], replicas: int
) -> tuple[float | None, float | None, float | None]:
    """(busy share of a replica's link, seconds spared a second, tokens loaded) of all classes.

    A link carries so many loads and no more; each replica is taken to have one like the profile's.
    """
    busy = total = loaded = 0.0
    for one in classes:
        if one.link_busy_share is None or one.benefit_seconds_per_second is None or one.loaded_tokens is None:
            return None, None, None
        busy += one.link_busy_share / replicas
        total += one.benefit_seconds_per_second
        loaded += one.loaded_tokens
    return busy, total / max(1.0, busy), loaded / max(1.0, busy)


def _warnings(load: float, replicas: int) -> tuple[str, ...]:
    if load <= 1.0:
        return ()
    return (
        f"A second of this traffic asks each replica for {format_seconds(load)} of prefill: "
        f"{counted(replicas, 'replica')} of this profile cannot serve it, it takes "
        f"{math.ceil(load * replicas):,} or more. Requests would queue, whatever is shared; check "
        "--replicas, and that the profile is of the machine that will serve.",
    )


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
    gain: _Gain,
    spared: float | None,
    threshold: float | None,
    link: Link,
) -> str:
    routing = analysis.misses_routing
    if verdict == "nothing":
        return (
            f"Nothing to share: even a cache that forgets nothing would hit {gain.hit:.1%} of the tokens; "
            "look at how prompts are assembled (kvferry trace lint) before buying memory."
        )
    if verdict != "pool":
        is_open = gain.matters and link.bytes_per_second is None and threshold is not None
        begun = (
            f"{'Keep the local caches for now' if is_open else 'Local cache is enough'}: replicas hit "
            f"{gain.local:.1%} of the tokens themselves"
            if verdict == "local"
            else f"Route by prefix: {routing} hits {gain.local:.1%} of the tokens in the replicas' own "
            f"memory against {gain.blind:.1%} without looking at prefixes"
        )
        if is_open:
            return f"{begun}{_room(analysis)}. {_open(gain.more, threshold or math.inf, link)}"
        return f"{begun}; {_no_pool(gain)}{_room(analysis)}."
    where = (
        f"above {format_rate(threshold)}"
        if threshold is not None and math.isfinite(threshold)
        else "on this link"
    )
    today = f"under {routing} routing" if routing else "in local caches"
    return (
        f"A pool may pay, and that is not proven: it would hit {gain.local + gain.more:.1%} of the tokens "
        f"against {gain.local:.1%} {today}, and spare up to {spared or 0.0:.2g} s of prefill a second "
        f"{where} ({link.tier} here: {format_rate(link.bytes_per_second or 0.0)}). What writing and evicting "
        "take is unknown: no verdict for it before a load test with limited capacity and the real mix of "
        f"lengths. Until then, {'route by prefix' if routing else 'keep the local caches'}."
    )


def _open(more: float, threshold: float, link: Link) -> str:
    """Of a pool behind a link that nobody has measured."""
    if math.isinf(threshold):
        return (
            f"A pool would add {more:.1%} to that, and pay on no link: computing it takes less than any load."
        )
    return (
        f"Whether a pool, which would add {more:.1%} to that, pays is unknown: the link to {link.tier} was "
        f"never measured; it pays above {format_rate(threshold)}."
    )


def _no_pool(gain: _Gain) -> str:
    added = f"what a pool would add to that ({gain.more:.1%})"
    if not gain.matters:
        return f"{added} is too little to matter"
    return f"{added} {'spares too little' if (gain.spared or 0.0) > 0.0 else 'does not pay'} on this link"


def _room(analysis: Analysis) -> str:
    """What more memory would do, where much was evicted."""
    mark = next((mark for mark in analysis.marks if mark.name.startswith("90 %")), None)
    if mark is None or analysis.misses is None or analysis.misses.evicted < _WORTH * analysis.input_tokens:
        return ""
    return f"; {counted(mark.capacity_tokens, 'token')} in one cache would hold nine tenths of all hits"
