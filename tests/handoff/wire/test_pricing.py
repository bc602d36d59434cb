"""Rule: remote prefill + transfer < local prefill; a sunk prefill counts nothing."""

from __future__ import annotations

import msgspec
import pytest
from crossing import manifest_of

from kvferry.cost.prefill import PrefillModel
from kvferry.cost.transfer import LegModel
from kvferry.gate.facts import GateTerms, Reason
from kvferry.handoff.wire.pricing import Pricing, decide_handoff

BYTES = 1_000_000
TERMS = GateTerms(margin_seconds=0.0, margin_share=0.0)


def priced(link_seconds: float | None, prefill_seconds: float | None, terms: GateTerms = TERMS) -> Pricing:
    """A receiver on which this hand-off takes so long, and its prompt so long."""
    link, prefill = LegModel(), PrefillModel()
    for _ in range(200):
        if link_seconds is not None:
            link.observe(BYTES, link_seconds)
        if prefill_seconds is not None:
            prefill.observe(100, 0, prefill_seconds)
    return Pricing(prefill=prefill, link=link, chunk_tokens=256, terms=terms)


@pytest.mark.parametrize(
    ("link", "remote", "local", "reason"),
    [
        (0.5, None, 1.0, Reason.PAYS),
        (1.5, None, 1.0, Reason.SLOWER),
        (0.5, 0.3, 1.0, Reason.PAYS),
        (0.5, 0.9, 1.0, Reason.SLOWER),
        (0.5, 1.0, 4.0, Reason.PAYS),
    ],
)
def test_the_rule(link: float, remote: float | None, local: float, reason: Reason) -> None:
    manifest = manifest_of(sunk=remote is None, prefill_seconds=remote or 0.0)
    _, decision = decide_handoff(manifest, BYTES, priced(link, local))
    assert decision.reason is reason
    assert decision.recompute_seconds == pytest.approx(local, rel=0.05)


def test_a_queue_before_local_prefill_counts_for_the_hand_off() -> None:
    _, alone = decide_handoff(manifest_of(), BYTES, priced(1.5, 1.0))
    _, queued = decide_handoff(manifest_of(), BYTES, priced(1.5, 1.0), dispatch_seconds=2.0)
    assert (alone.reason, queued.reason) == (Reason.SLOWER, Reason.PAYS)


def test_a_local_hit_leaves_less_to_win() -> None:
    _, decision = decide_handoff(manifest_of(), BYTES, priced(0.5, 1.0), local_tokens=80)
    assert decision.reason is Reason.SLOWER


def test_an_unknown_link_is_tried() -> None:
    assert decide_handoff(manifest_of(), BYTES, priced(None, 1.0))[1].reason is Reason.UNMEASURED


def test_an_unknown_prefill_is_computed() -> None:
    assert decide_handoff(manifest_of(), BYTES, priced(0.1, None))[1].reason is Reason.UNKNOWN_PREFILL


def test_what_cannot_be_there_in_time_is_declined() -> None:
    _, decision = decide_handoff(manifest_of(), BYTES, priced(0.5, 2.0), deadline_seconds=0.4)
    assert (decision.reason, decision.loads) == (Reason.DEADLINE, False)


@pytest.mark.parametrize(("policy", "loads"), [("always", True), ("never", False)])
def test_an_experiment_may_overrule(policy: str, loads: bool) -> None:
    terms = msgspec.structs.replace(TERMS, policy=policy)
    assert decide_handoff(manifest_of(), BYTES, priced(1.5, 1.0, terms))[1].loads is loads


def test_the_facts_replay_the_decision() -> None:
    from kvferry.gate.decide import decide

    pricing = priced(0.5, 1.0)
    facts, decision = decide_handoff(manifest_of(), BYTES, pricing)
    assert decide(facts, pricing.terms) == decision
