"""The rule: carry if q95(load) + interference + margin < q50(recompute), for the best number of blocks.

    T_load      = lookup + queue + sum over segments (setup + bytes / rate)
    T_recompute = dispatch + a chunks + b n + c n (context + n / 2)
    interference = decode growth x T_load x running requests + seconds that others wait per load

A transfer is linear in its length and prefill is convex, so the gain of loading the first k blocks is
convex in k between the ends of segments: only those ends, and the caps of memory, request and deadline,
can be best. That is why a handful of candidates is enough.

The high quantile of a sum of legs is taken as the sum of their high quantiles: never too low, since the
legs of one load are in series and share causes.
"""

from __future__ import annotations

from bisect import insort
from math import ceil

import msgspec

from .facts import Arm, Decision, Facts, GateTerms, Reason

__all__ = ["decide", "recompute_seconds"]

_SLACK = 1.0 + 1e-9
# What most decisions touch; a member reached through its class costs as much as a call.
_ON, _PAYS, _SLOWER = Arm.ON, Reason.PAYS, Reason.SLOWER

_BARRED = {
    Arm.OFF: Reason.OFF,
    Arm.SHADOW: Reason.SHADOW,
    Arm.HOLDOUT: Reason.HOLDOUT,
    Arm.OUTSIDE: Reason.OUTSIDE,
}


def recompute_seconds(facts: Facts, end_block: int) -> float:
    """Median seconds to compute the prompt from the local tokens to `end_block`, dispatch included."""
    live = facts.live
    context = facts.local_tokens
    tokens = end_block * facts.block_tokens - context
    if tokens <= 0:
        return 0.0
    prefill = (
        live.prefill_step_seconds * ceil(tokens / live.chunk_tokens)
        + live.prefill_token_seconds * tokens
        + live.prefill_pair_seconds * tokens * (context + tokens / 2)
    )
    return live.dispatch_seconds + prefill * live.prefill_median


def decide(facts: Facts, terms: GateTerms) -> Decision:
    """Choose how many of the found blocks to load.

    The best candidate is the one that saves most by the full rule. Arms that may not load are priced all
    the same, so that their records hold the counterfactual.
    """
    local_blocks = facts.local_tokens // facts.block_tokens
    found_end = facts.segments[-1].stop_block if facts.segments else 0
    # At least one token has to be computed, or there is nothing to sample from.
    found_end = min(found_end, (facts.prompt_tokens - 1) // facts.block_tokens)
    if found_end <= local_blocks:
        return Decision(local_blocks, Reason.NOTHING_FOUND, candidate_end_block=local_blocks)

    allowed_end, cap_reason = _allowed_end(facts, local_blocks, found_end)
    if allowed_end <= local_blocks:
        return Decision(local_blocks, cap_reason, candidate_end_block=found_end)

    best: Decision | None = None
    best_gain = float("-inf")
    for end in _candidate_ends(facts, local_blocks, allowed_end):
        priced = _price(facts, terms, local_blocks, end)
        if priced is None:
            continue
        gain = (
            priced.recompute_seconds
            - priced.load_high_seconds
            - priced.interference_seconds
            - priced.margin_seconds
        )
        # An experiment that always loads takes all it may, whatever it costs.
        if gain > best_gain or terms.policy == "always":
            best, best_gain = priced, gain
    if best is None:
        return _beyond_deadline(facts, terms, local_blocks)

    reason = _choose(facts, terms, best, best_gain)
    if reason is _SLOWER and facts.explore:
        # All of it would take too long to be tried; a few blocks tell as much of the link.
        limit = terms.explore_limit * recompute_seconds(facts, allowed_end)
        few = max(local_blocks + 1, _end_within(facts, local_blocks, allowed_end, limit, high=False))
        tried = _price(facts, terms, local_blocks, few)
        if tried is not None:
            best, reason = tried, Reason.EXPLORES_LOAD
    if reason is _PAYS and best.candidate_end_block < found_end:
        reason = Reason.PAYS_IN_PART
    return Decision(
        best.candidate_end_block if reason.loads else local_blocks,
        reason,
        best.load_median_seconds,
        best.load_high_seconds,
        best.recompute_seconds,
        best.interference_seconds,
        best.margin_seconds,
        best.candidate_end_block,
        best.candidate_bytes,
    )


def _beyond_deadline(facts: Facts, terms: GateTerms, local_blocks: int) -> Decision:
    """Not even one block is expected in time; it is priced all the same.

    A prediction that is never tried is never corrected: once a pool has hung, its link would be taken for a
    slow one for ever. Who explores, or always loads, tries one block; the deadline still ends it.
    """
    unbounded = msgspec.structs.replace(facts, deadline_seconds=None)
    one = _price(unbounded, terms, local_blocks, local_blocks + 1)
    if one is None:
        return Decision(local_blocks, Reason.DEADLINE, candidate_end_block=local_blocks + 1)
    reason = Reason.DEADLINE
    if facts.arm is Arm.ON and terms.policy == "always":
        reason = Reason.ALWAYS
    elif facts.arm is Arm.ON and terms.policy == "rule" and facts.explore:
        reason = Reason.EXPLORES_LOAD
    end_block = one.candidate_end_block if reason.loads else local_blocks
    return msgspec.structs.replace(one, end_block=end_block, reason=reason)


def _allowed_end(facts: Facts, local_blocks: int, found_end: int) -> tuple[int, Reason]:
    """The last block that memory and the request allow, and what stands in the way where it is none."""
    by_memory = local_blocks + facts.live.free_blocks
    by_request = found_end
    if facts.max_load_tokens is not None:
        by_request = local_blocks + facts.max_load_tokens // facts.block_tokens
    reason = Reason.NO_MEMORY if by_memory <= by_request else Reason.NOT_ALLOWED
    return min(found_end, by_memory, by_request), reason


def _candidate_ends(facts: Facts, local_blocks: int, allowed_end: int) -> list[int]:
    """In rising order."""
    ends = [local_blocks]
    for segment in facts.segments:
        end = min(segment.stop_block, allowed_end)
        if end > ends[-1]:
            ends.append(end)
    if facts.deadline_seconds is not None:
        end = _end_within(facts, local_blocks, allowed_end, facts.deadline_seconds, high=True)
        if end not in ends:
            insort(ends, end)
    return ends[1:]


def _end_within(facts: Facts, local_blocks: int, allowed_end: int, seconds: float, *, high: bool) -> int:
    """The last block that is expected within `seconds`, at the high quantile or at the median."""
    left = seconds - facts.queue_seconds
    block_bytes = facts.block_tokens * facts.bytes_per_token
    at = local_blocks
    for segment in facts.segments:
        blocks = min(segment.stop_block, allowed_end) - at
        if blocks <= 0:
            continue
        spread = max(segment.spread_high, segment.spread_median) if high else segment.spread_median
        left -= segment.setup_seconds * spread
        per_block = segment.seconds_per_byte * block_bytes * spread
        if left <= 0.0:
            break
        fits = blocks if per_block * blocks <= left else int(left / per_block)
        at += fits
        if fits < blocks:
            break
        left -= fits * per_block
    return at


def _price(facts: Facts, terms: GateTerms, local_blocks: int, end: int) -> Decision | None:
    """Both ways of getting blocks up to `end`; None when the load would miss the request's deadline."""
    block_bytes = facts.block_tokens * facts.bytes_per_token
    median = high = facts.lookup_seconds + facts.queue_seconds
    at = local_blocks
    for segment in facts.segments:
        blocks = min(segment.stop_block, end) - at
        if blocks <= 0:
            continue
        leg = segment.setup_seconds + segment.seconds_per_byte * blocks * block_bytes
        median += leg * segment.spread_median
        high += leg * max(segment.spread_high, segment.spread_median)
        at += blocks
    # The lookup lies behind, so it is no part of what is left. The slack forgives rounding.
    if facts.deadline_seconds is not None and high - facts.lookup_seconds > facts.deadline_seconds * _SLACK:
        return None
    live = facts.live
    recompute = recompute_seconds(facts, end)
    interference = live.held_seconds_per_load + live.decode_growth * median * live.running_requests
    if terms.objective == "throughput":
        # Computing occupies the engine too: what the load takes from others is net of that.
        interference -= (recompute - live.dispatch_seconds) * live.running_requests
    return Decision(
        local_blocks,
        _SLOWER,
        median,
        high,
        recompute,
        interference,
        max(terms.margin_seconds, terms.margin_share * recompute),
        end,
        (end - local_blocks) * block_bytes,
    )


def _choose(facts: Facts, terms: GateTerms, best: Decision, gain: float) -> Reason:
    if facts.arm is not _ON:
        return _BARRED[facts.arm]
    if terms.policy == "never":
        return Reason.NEVER
    if terms.policy == "always":
        return Reason.ALWAYS
    if facts.live.prefill_observations == 0:
        return Reason.UNKNOWN_PREFILL
    first = facts.local_tokens // facts.block_tokens
    for segment in facts.segments:
        if segment.observations == 0 and first < best.candidate_end_block:
            return Reason.UNMEASURED
        first = segment.stop_block
    if gain > 0.0:
        if facts.explore and best.recompute_seconds <= terms.explore_limit * best.load_median_seconds:
            return Reason.EXPLORES_RECOMPUTE
        return _PAYS
    if facts.explore and best.load_median_seconds <= terms.explore_limit * best.recompute_seconds:
        return Reason.EXPLORES_LOAD
    return Reason.BUSY if facts.queue_seconds > 0.0 and gain + facts.queue_seconds > 0.0 else Reason.SLOWER
