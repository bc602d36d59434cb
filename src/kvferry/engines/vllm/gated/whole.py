"""The house rule for a connector that loads all that it found or nothing.

Owns what all-or-nothing changes in a decision: a cap that does not let everything pass lets nothing pass, a
load that would come late is no load, and an exploring request cannot try a few blocks. Pure.
"""

from __future__ import annotations

import msgspec

from ....gate.decide import decide
from ....gate.facts import Arm, Decision, Facts, GateTerms, Reason

__all__ = ["decide_whole", "declined", "left_alone"]

_SLACK = 1.0 + 1e-9


def decide_whole(
    facts: Facts, terms: GateTerms, *, budget_seconds: float, retry: bool
) -> tuple[Facts, Decision]:
    """Load every found block, or none; with the facts that the decision rests on.

    `budget_seconds` is the longest load allowed, from now. With `retry`, an exploring request loads
    everything even where that is predicted to take many times the recompute: it is the only way to learn
    that a connector has recovered.
    """
    local = facts.local_tokens // facts.block_tokens
    found = facts.segments[-1].stop_block if facts.segments else 0
    whole = min(found, (facts.prompt_tokens - 1) // facts.block_tokens)
    allowed = facts.max_load_tokens
    if allowed is not None:
        fits = allowed >= (whole - local) * facts.block_tokens
        facts = msgspec.structs.replace(facts, max_load_tokens=None if fits else 0)
    decision = decide(facts, terms)
    explores = decision.reason is Reason.EXPLORES_LOAD
    if explores and decision.end_block < whole:
        # It would try a few blocks, which this connector cannot do.
        facts = msgspec.structs.replace(facts, explore=False)
        decision = decide(facts, terms)
        if retry:
            return facts, msgspec.structs.replace(decision, end_block=whole, reason=Reason.EXPLORES_LOAD)
        return facts, decision
    late = decision.load_high_seconds > budget_seconds * _SLACK
    if decision.loads and late and not explores and decision.reason is not Reason.ALWAYS:
        return facts, declined(decision, Reason.DEADLINE, local)
    return facts, decision


def left_alone(facts: Facts, terms: GateTerms, *, budget_seconds: float) -> Decision:
    """What the gate would have chosen for a request that it only watches."""
    on = msgspec.structs.replace(facts, arm=Arm.ON, explore=False)
    return decide_whole(on, terms, budget_seconds=budget_seconds, retry=False)[1]


def declined(decision: Decision, reason: Reason, local_blocks: int) -> Decision:
    """The same prices, but nothing is loaded."""
    return msgspec.structs.replace(decision, end_block=local_blocks, reason=reason)
