"""Expected benefit of a pool for each class of prefixes, and where its sign flips.

    E = h_remote (T_recompute - T_remote) - P_stall - P_write - P_eviction

per request of the class; times its rate, the seconds of prefill that a second of traffic is spared. h_remote
counts only what a pool adds behind the best local routing. T_recompute and T_remote come from the profile,
for each length apart, because a prefill is not linear and the rule loads only where the slow end of a load
beats the middle of a recompute. What writing and evicting cost others is in no profile: they are None, the
benefit is an upper bound, and whoever reads it must not take it for a verdict. On a link whose rate nobody
has measured all that a load would take or spare is None; the break-even, which needs no link, is known.
"""

from __future__ import annotations

import math

import msgspec

from ..analysis.result import Analysis, ClassResult, LengthBin, Sharing
from ..cost.profile import Origin, PrefillProfile, Profile
from ..errors import UsageError

__all__ = ["ClassBenefit", "Link", "benefits", "link_of"]

_NONE = Sharing(
    local_tokens=0,
    remote_tokens=0,
    remote_requests=0,
    lengths=(),
    computed_tokens=0,
    computed_pair_tokens=0.0,
)


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The leg that loads take, as a profile has it."""

    tier: str
    setup_seconds: float
    bytes_per_second: float | None
    """None: not known."""
    spread_p95: float
    """A slow load over a usual one."""
    measured: bool


class ClassBenefit(msgspec.Struct, frozen=True, kw_only=True):
    """One class; times are means over its remote hits, in seconds."""

    name: str
    requests_per_second: float
    local_share: float
    """Useful tokens that replicas hit themselves, over input tokens."""
    remote_share: float
    """What a pool adds to them."""
    h_remote: float
    """Share of the class's requests that find something in the pool that their replica lacks."""
    loaded_share: float | None
    """Of these, the share for which the rule loads; like all that loads decide, None on a link of unknown
    rate."""
    loaded_tokens: int | None
    recompute_seconds: float
    """Over all remote hits on a link of unknown rate, else over the loaded ones."""
    remote_seconds: float | None
    stall_seconds: float | None
    """P_stall of a request; None also where interference was not measured."""
    write_seconds: None
    """P_write: unknown before a load test."""
    eviction_seconds: None
    """P_eviction: unknown before a load test."""
    link_busy_share: float | None
    """Seconds of loads in a second of traffic."""
    benefit_seconds: float | None
    """E of a request, without what is not known: an upper bound."""
    benefit_seconds_per_second: float | None
    """rate x E."""
    most_seconds_per_second: float
    """What a second of traffic would be spared if loads took no time."""
    prefill_seconds_per_second: float
    """What replicas have to prefill for in a second of traffic without a pool; what a step costs beside its
    tokens is counted for whole chunks only, so that it is a little too low."""
    break_even_bytes_per_second: float | None
    """Below it recompute wins on average; infinite where setup alone takes as long, None where a pool
    adds nothing."""


def link_of(profile: Profile, tier: str | None) -> Link:
    """The leg of `tier` (None: the pool's, or the only one). Raises `UsageError` with the names there are.

    A replica without a pool has measured no link at all: that is the pool's, of unknown rate.
    """
    names = sorted(profile.legs)
    if not names and tier is None:
        return Link(tier="pool", setup_seconds=0.0, bytes_per_second=None, spread_p95=1.0, measured=False)
    name = tier or ("pool" if "pool" in profile.legs or len(names) != 1 else names[0])
    if name not in profile.legs:
        known = ", ".join(names) or "none: no load was measured"
        raise UsageError(f"--tier: the profile has no leg {name!r}; it has {known}")
    leg = profile.legs[name]
    rate = leg.bytes_per_second
    return Link(
        tier=name,
        setup_seconds=leg.setup_seconds.value,
        bytes_per_second=None if rate is None else rate.value,
        spread_p95=leg.spread_p95.value,
        measured=rate is not None and rate.origin is Origin.MEASURED,
    )


def benefits(
    analysis: Analysis,
    profile: Profile,
    link: Link,
    *,
    bytes_per_token: float,
    chunk_tokens: int = 8_192,
    decoding: float = 8.0,
    margin_seconds: float = 0.002,
    margin_share: float = 0.05,
) -> tuple[ClassBenefit, ...]:
    """The benefit of each class of `analysis`.

    `decoding` requests decode beside a load and are slowed by it as the profile measured. `chunk_tokens` is
    the engine's prefill chunk. Raises `UsageError` where the profile has no prefill times.
    """
    if profile.prefill.observations == 0:
        raise UsageError(
            "--profile: no prefill was measured in it; run kvferry demo, or a replica, and use its own"
        )
    interference = profile.interference_model()
    measured = profile.interference.growth.origin is Origin.MEASURED and interference.loads > 0
    growth = interference.growth * decoding if measured else 0.0
    held = interference.held_seconds_per_load if measured else 0.0
    rule = _Rule(link, bytes_per_token, growth, held, margin_seconds, margin_share)
    return tuple(
        _benefit(
            one, one.sharing or _NONE, analysis.span_seconds, profile.prefill, rule, chunk_tokens, measured
        )
        for one in analysis.classes
    )


class _Rule(msgspec.Struct, frozen=True):
    link: Link
    bytes_per_token: float
    growth: float
    held: float
    margin_seconds: float
    margin_share: float

    def load(self, tokens: float) -> float:
        """Seconds of one load."""
        rate = self.link.bytes_per_second or math.inf
        return self.link.setup_seconds + tokens * self.bytes_per_token / rate

    def stall(self, load_seconds: float) -> float:
        return self.growth * load_seconds + self.held

    def carries(self, load_seconds: float, recompute_seconds: float) -> bool:
        margin = max(self.margin_seconds, self.margin_share * recompute_seconds)
        slow = load_seconds * max(1.0, self.link.spread_p95)
        return slow + self.stall(load_seconds) + margin < recompute_seconds


def _benefit(
    one: ClassResult,
    sharing: Sharing,
    span: float,
    prefill: PrefillProfile,
    rule: _Rule,
    chunk: int,
    measured: bool,
) -> ClassBenefit:
    open_ = rule.link.bytes_per_second is None and sharing.remote_requests > 0
    loaded = loaded_tokens = 0
    recompute = remote = stall = all_recompute = 0.0
    for bin_ in sharing.lengths:
        seconds = _recompute(bin_, prefill, chunk)
        all_recompute += seconds
        if open_:
            continue
        load = rule.load(bin_.remote_tokens / bin_.requests)
        if not rule.carries(load, seconds / bin_.requests):
            continue
        loaded += bin_.requests
        loaded_tokens += bin_.remote_tokens
        recompute += seconds
        remote += load * bin_.requests
        stall += rule.stall(load) * bin_.requests
    benefit = (recompute - remote - stall) / one.requests if one.requests else 0.0
    rate = one.requests / span if span > 0 else 0.0
    tokens = max(1, one.input_tokens)
    hits = sharing.remote_requests
    own = _seconds(sharing.computed_tokens, sharing.computed_pair_tokens, prefill, chunk)
    mean = all_recompute / hits if open_ else recompute / loaded if loaded else 0.0
    return ClassBenefit(
        name=one.name,
        requests_per_second=rate,
        local_share=sharing.local_tokens / tokens,
        remote_share=sharing.remote_tokens / tokens,
        h_remote=hits / max(1, one.requests),
        loaded_share=None if open_ else loaded / hits if hits else 0.0,
        loaded_tokens=None if open_ else loaded_tokens,
        recompute_seconds=mean,
        remote_seconds=None if open_ else remote / loaded if loaded else 0.0,
        stall_seconds=None if open_ or not measured else stall / one.requests if one.requests else 0.0,
        write_seconds=None,
        eviction_seconds=None,
        link_busy_share=None if open_ else remote / span if span > 0 else 0.0,
        benefit_seconds=None if open_ else benefit,
        benefit_seconds_per_second=None if open_ else rate * benefit,
        most_seconds_per_second=all_recompute / span if span > 0 else 0.0,
        prefill_seconds_per_second=own / span if span > 0 else 0.0,
        break_even_bytes_per_second=_break_even(sharing.remote_tokens, hits, all_recompute, rule),
    )


def _recompute(bin_: LengthBin, prefill: PrefillProfile, chunk: int) -> float:
    """Seconds for all requests of a bin. A tail is computed anyway, so only whole chunks spare a step."""
    return _seconds(bin_.remote_tokens, bin_.pair_tokens, prefill, chunk)


def _seconds(tokens: int, pairs: float, prefill: PrefillProfile, chunk: int) -> float:
    return (
        prefill.step_seconds.value * tokens / chunk
        + prefill.token_seconds.value * tokens
        + prefill.pair_seconds.value * pairs
    )


def _break_even(tokens: int, requests: int, recompute: float, rule: _Rule) -> float | None:
    if not requests:
        return None
    left = recompute - requests * (rule.link.setup_seconds + rule.held)
    if left <= 0.0:
        return math.inf
    # Loads slow others for as long as they take, so their own time counts 1 + growth times.
    return tokens * rule.bytes_per_token * (1.0 + rule.growth) / left
