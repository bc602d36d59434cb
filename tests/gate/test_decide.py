"""The rule: every reason by example, and what holds in every situation."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from situations import BLOCK, FACTS, SEGMENT, any_facts, any_terms, facts, loadable_facts

from kvferry.gate.decide import decide, recompute_seconds
from kvferry.gate.facts import Arm, Decision, Facts, GateTerms, Reason

TERMS = GateTerms()
SLOW = {"seconds_per_byte": 1e-6}
PLODDING = {"seconds_per_byte": 1e-7, "spread_high": 1.0}
UNKNOWN = {"observations": 0, "seconds_per_byte": 0.0, "setup_seconds": 0.0}
CLOSE = {"seconds_per_byte": 4.5e-7, "setup_seconds": 0.01}
"""A little slower than computing: within what may be explored."""


@pytest.mark.parametrize(
    ("reason", "end", "live", "segment", "changes", "terms"),
    [
        (Reason.PAYS, 64, {}, {}, {}, {}),
        (Reason.PAYS_IN_PART, 10, {"free_blocks": 10}, {}, {}, {}),
        (Reason.PAYS_IN_PART, 10, {}, {}, {"max_load_tokens": 10 * BLOCK + 3}, {}),
        (Reason.PAYS_IN_PART, 42, {}, PLODDING, {"deadline_seconds": 0.07}, {}),
        (Reason.NOTHING_FOUND, 0, {}, {}, {"segments": ()}, {}),
        (Reason.NOTHING_FOUND, 64, {}, {}, {"local_tokens": 64 * BLOCK}, {}),
        (Reason.SLOWER, 0, {}, SLOW, {}, {}),
        (Reason.EXPLORES_LOAD, 64, {}, CLOSE, {"explore": True}, {}),
        (Reason.EXPLORES_RECOMPUTE, 0, {}, {"seconds_per_byte": 3e-7}, {"explore": True}, {}),
        (Reason.UNMEASURED, 64, {}, UNKNOWN, {}, {}),
        (Reason.UNKNOWN_PREFILL, 0, {"prefill_observations": 0}, {}, {}, {}),
        (Reason.ALWAYS, 64, {}, SLOW, {}, {"policy": "always"}),
        (Reason.NEVER, 0, {}, {}, {}, {"policy": "never"}),
        (Reason.NO_MEMORY, 0, {"free_blocks": 0}, {}, {}, {}),
        (Reason.NOT_ALLOWED, 0, {}, {}, {"max_load_tokens": BLOCK - 1}, {}),
        (Reason.DEADLINE, 0, {}, {}, {"deadline_seconds": 0.0005}, {}),
        (Reason.BUSY, 0, {}, {}, {"queue_seconds": 10.0}, {}),
        (Reason.OFF, 0, {}, {}, {"arm": Arm.OFF}, {}),
        (Reason.SHADOW, 0, {}, {}, {"arm": Arm.SHADOW}, {}),
        (Reason.HOLDOUT, 0, {}, {}, {"arm": Arm.HOLDOUT}, {}),
        (Reason.OUTSIDE, 0, {}, {}, {"arm": Arm.OUTSIDE}, {}),
    ],
)  # fmt: skip
def test_every_reason(
    reason: Reason, end: int, live: dict[str, Any], segment: dict[str, Any], changes: dict[str, Any],
    terms: dict[str, Any],
) -> None:  # fmt: skip
    decision = decide(facts(live, segment, **changes), GateTerms(**terms))
    assert (decision.reason, decision.end_block) == (reason, end)


def test_no_reason_is_left_without_an_example() -> None:
    (marker,) = test_every_reason.pytestmark  # type: ignore[attr-defined]
    assert {row[0] for row in marker.args[1]} == set(Reason)


def test_the_rule_by_hand() -> None:
    decision = decide(facts(lookup_seconds=0.003), TERMS)
    size = 64 * BLOCK * 1024
    assert decision.load_median_seconds == pytest.approx(0.003 + 0.001 + size * 1e-9)
    assert decision.load_high_seconds == pytest.approx(0.003 + 1.2 * (0.001 + size * 1e-9))
    tokens = 64 * BLOCK
    assert decision.recompute_seconds == pytest.approx(0.002 + 0.0005 * tokens + 1e-8 * tokens * tokens / 2)
    assert decision.margin_seconds == pytest.approx(0.05 * decision.recompute_seconds)
    assert decision.candidate_bytes == size


def test_equal_means_do_not_count() -> None:
    """Loading is faster on average, but its slow end is not clearly below: recompute."""
    decision = decide(facts(segment={"seconds_per_byte": 3e-7, "spread_high": 2.0}), TERMS)
    assert decision.load_median_seconds < decision.recompute_seconds
    assert decision.reason is Reason.SLOWER


def test_what_loads_take_from_others_is_charged_to_them() -> None:
    busy = {"decode_growth": 0.5, "running_requests": 40}
    segment = {"seconds_per_byte": 1e-7}
    assert decide(facts(segment=segment), TERMS).loads
    decision = decide(facts(busy, segment), TERMS)
    assert decision.interference_seconds == pytest.approx(0.5 * 40 * decision.load_median_seconds)
    assert not decision.loads


def test_for_throughput_computing_is_charged_too() -> None:
    busy = facts({"decode_growth": 0.5, "running_requests": 40}, {"seconds_per_byte": 1e-7})
    assert not decide(busy, TERMS).loads
    decision = decide(busy, GateTerms(objective="throughput"))
    assert decision.loads
    assert decision.recompute_seconds == decide(busy, TERMS).recompute_seconds, "its own time stays its own"


def test_a_second_tier_that_does_not_pay_is_left() -> None:
    near = msgspec.structs.replace(SEGMENT, stop_block=20)
    far = msgspec.structs.replace(SEGMENT, tier=1, seconds_per_byte=1e-6)
    decision = decide(facts(segments=(near, far)), TERMS)
    assert (decision.end_block, decision.reason) == (20, Reason.PAYS_IN_PART)


def test_what_was_measured_too_slow_is_not_loaded_for_an_unmeasured_tier_out_of_reach() -> None:
    slow = msgspec.structs.replace(SEGMENT, stop_block=20, seconds_per_byte=1e-6)
    unknown = msgspec.structs.replace(
        SEGMENT, tier=1, observations=0, setup_seconds=0.0, seconds_per_byte=0.0
    )
    assert decide(facts({"free_blocks": 10}, segments=(slow, unknown)), TERMS).reason is Reason.SLOWER


def test_a_link_that_looks_hopeless_is_tried_with_a_few_blocks() -> None:
    decision = decide(facts(segment={"seconds_per_byte": 1e-5}, explore=True), TERMS)
    assert decision.reason is Reason.EXPLORES_LOAD
    assert decision.end_block == 9
    assert decision.load_median_seconds <= TERMS.explore_limit * recompute_seconds(FACTS, 64)


def test_the_last_token_is_left_to_compute() -> None:
    assert decide(facts(prompt_tokens=64 * BLOCK), TERMS).end_block == 63
    assert decide(facts(prompt_tokens=64 * BLOCK + 1), TERMS).end_block == 64
    assert decide(facts(prompt_tokens=BLOCK), TERMS).reason is Reason.NOTHING_FOUND


def test_always_takes_all_it_may() -> None:
    near = msgspec.structs.replace(SEGMENT, stop_block=20)
    far = msgspec.structs.replace(SEGMENT, tier=1, seconds_per_byte=1e-6)
    assert decide(facts(segments=(near, far)), GateTerms(policy="always")).end_block == 64


# -- in every situation ----------------------------------------------------------------------------------


@given(any_facts(), any_terms())
def test_never_more_than_is_there_or_allowed(facts: Facts, terms: GateTerms) -> None:
    decision = decide(facts, terms)
    local = facts.local_tokens // facts.block_tokens
    assert decision.end_block >= local
    if not decision.loads:
        assert decision.end_block == local
        return
    assert facts.arm is Arm.ON
    assert decision.end_block <= facts.segments[-1].stop_block
    assert decision.end_block * facts.block_tokens < facts.prompt_tokens, "the last token is computed"
    assert decision.end_block - local <= facts.live.free_blocks
    if facts.max_load_tokens is not None:
        assert (decision.end_block - local) * facts.block_tokens <= facts.max_load_tokens
    tries = decision.reason in (Reason.EXPLORES_LOAD, Reason.ALWAYS) and decision.end_block == local + 1
    # One block may be tried against the prediction; the deadline itself still ends the load.
    if facts.deadline_seconds is not None and not tries:
        left = decision.load_high_seconds - facts.lookup_seconds
        assert left <= facts.deadline_seconds * (1 + 1e-6)


@given(any_facts(), any_terms())
def test_loading_by_the_rule_obeys_the_rule(facts: Facts, terms: GateTerms) -> None:
    decision = decide(facts, terms)
    if decision.reason in (Reason.PAYS, Reason.PAYS_IN_PART):
        load = decision.load_high_seconds + decision.interference_seconds + decision.margin_seconds
        assert load < decision.recompute_seconds


@given(any_facts(), any_terms())
def test_the_margin_is_never_nothing(facts: Facts, terms: GateTerms) -> None:
    decision = decide(facts, terms)
    if decision.candidate_bytes:
        assert decision.margin_seconds >= terms.margin_seconds > 0.0
        assert decision.load_high_seconds >= decision.load_median_seconds


def _gain(facts: Facts, terms: GateTerms, end: int) -> float | None:
    """The gain of loading up to `end`, from the rule as it is written down, not from the code."""
    block_bytes = facts.block_tokens * facts.bytes_per_token
    at = facts.local_tokens // facts.block_tokens
    median = high = facts.lookup_seconds + facts.queue_seconds
    for segment in facts.segments:
        blocks = min(segment.stop_block, end) - at
        if blocks > 0:
            leg = segment.setup_seconds + blocks * block_bytes * segment.seconds_per_byte
            median += leg * segment.spread_median
            high += leg * segment.spread_high
            at += blocks
    if facts.deadline_seconds is not None and high - facts.lookup_seconds > facts.deadline_seconds:
        return None
    live = facts.live
    interference = live.held_seconds_per_load + live.decode_growth * median * live.running_requests
    recompute = recompute_seconds(facts, end)
    return recompute - high - interference - max(terms.margin_seconds, terms.margin_share * recompute)


@given(any_facts(arm=Arm.ON, explore=False), any_terms(policy="rule", objective="latency", margin_share=0.0))
def test_no_other_number_of_blocks_gains_more(facts: Facts, terms: GateTerms) -> None:
    """Ends of segments and caps suffice: the gain between them is convex, but for the steps of chunks.

    Without a queue before the engine: time that passes there is gained by loading any number of blocks.
    """
    facts = msgspec.structs.replace(facts, live=msgspec.structs.replace(facts.live, dispatch_seconds=0.0))
    decision = decide(facts, terms)
    if not decision.candidate_bytes:
        return
    local = facts.local_tokens // facts.block_tokens
    end = min(facts.segments[-1].stop_block, (facts.prompt_tokens - 1) // facts.block_tokens)
    end = min(end, local + facts.live.free_blocks)
    if facts.max_load_tokens is not None:
        end = min(end, local + facts.max_load_tokens // facts.block_tokens)
    gains = [g for k in range(local + 1, end + 1) if (g := _gain(facts, terms, k)) is not None]
    chosen = _gain(facts, terms, decision.candidate_end_block)
    best = max(gains, default=-math.inf)
    step = facts.live.prefill_step_seconds * facts.live.prefill_median
    if best > 0.0 and chosen is not None:  # None by a rounding error at the deadline itself
        assert chosen >= best - step - 1e-9


@given(loadable_facts(), any_terms(policy="rule"), st.floats(1.0, 1000.0))
def test_a_faster_link_never_turns_a_load_into_recompute(
    facts: Facts, terms: GateTerms, factor: float
) -> None:
    before = decide(facts, terms)
    assume(before.loads)
    for number in range(len(facts.segments)):
        segments = list(facts.segments)
        rate = segments[number].seconds_per_byte / factor
        segments[number] = msgspec.structs.replace(segments[number], seconds_per_byte=rate)
        after = decide(msgspec.structs.replace(facts, segments=tuple(segments)), terms)
        assert after.loads


@given(loadable_facts(), any_terms(policy="rule"), st.floats(1.0, 100.0))
def test_slower_computing_never_turns_a_load_into_recompute(
    facts: Facts, terms: GateTerms, factor: float
) -> None:
    before = decide(facts, terms)
    assume(before.loads)
    live = msgspec.structs.replace(
        facts.live,
        prefill_token_seconds=facts.live.prefill_token_seconds * factor,
        prefill_pair_seconds=facts.live.prefill_pair_seconds * factor,
        prefill_step_seconds=facts.live.prefill_step_seconds * factor,
    )
    assert decide(msgspec.structs.replace(facts, live=live), terms).loads


@given(any_facts(), any_terms())
def test_a_record_of_the_facts_replays_the_decision(facts: Facts, terms: GateTerms) -> None:
    decision = decide(facts, terms)
    line = msgspec.json.encode((facts, terms, decision))
    again_facts, again_terms, recorded = msgspec.json.decode(line, type=tuple[Facts, GateTerms, Decision])
    assert decide(again_facts, again_terms) == recorded == decision


@given(any_facts(explore=False), any_terms())
def test_arms_that_may_not_load_are_priced_all_the_same(facts: Facts, terms: GateTerms) -> None:
    on = decide(msgspec.structs.replace(facts, arm=Arm.ON), terms)
    held_out = decide(msgspec.structs.replace(facts, arm=Arm.HOLDOUT), terms)
    assert held_out.recompute_seconds == on.recompute_seconds
    assert held_out.load_high_seconds == on.load_high_seconds
    assert held_out.candidate_bytes == on.candidate_bytes
