"""Whether to take a hand-off: remote prefill + transfer < local prefill, by the same gate as every load.

    T_handoff = remote prefill (0 where it is sunk) + setup + bytes / rate
    T_local   = dispatch + prefill(tokens behind the local hit)
    take      iff  q95(T_handoff) + margin < q50(T_local)

The transfer is one link to the gate, learned from whole hand-offs over it: from the answer to the last
layer, staging, wire and installation overlapped as they really were. A remote prefill that is not done yet
counts with the sender's expectation, and gets the link's spread on top. It is all or nothing: half of the
layers are of no use.
"""

from __future__ import annotations

import msgspec

from ...cost.prefill import PrefillModel
from ...cost.transfer import LegModel
from ...gate.decide import decide
from ...gate.facts import Arm, Decision, Facts, GateTerms, Live, Reason, Segment
from .manifest import Manifest

__all__ = ["Pricing", "decide_handoff"]


class Pricing(msgspec.Struct, kw_only=True):
    """What a receiver has learned, and its settings."""

    prefill: PrefillModel
    """Of this receiver."""
    link: LegModel
    """From the answer to the last layer, over this transport in this codec."""
    chunk_tokens: int
    """Of this receiver's prefill."""
    terms: GateTerms = msgspec.field(default_factory=GateTerms)


def decide_handoff(
    manifest: Manifest,
    payload_bytes: int,
    pricing: Pricing,
    *,
    local_tokens: int = 0,
    dispatch_seconds: float = 0.0,
    deadline_seconds: float | None = None,
    arm: Arm = Arm.ON,
) -> tuple[Facts, Decision]:
    """The facts and the decision; blocks are single tokens here, and the whole hand-off or nothing is taken.

    A link that has never carried anything is tried (`unmeasured`); without a measured prefill of our own the
    prompt is computed (`unknown_prefill`). `deadline_seconds` is what is left for it, from now.
    """
    quantile = pricing.terms.load_quantile
    setup, per_byte = pricing.link.coefficients
    facts = Facts(
        prompt_tokens=manifest.prompt_tokens,
        local_tokens=local_tokens,
        block_tokens=1,
        bytes_per_token=-(-payload_bytes // max(1, manifest.tokens - local_tokens)),
        segments=(
            Segment(
                tier=0,
                stop_block=manifest.tokens,
                setup_seconds=setup + manifest.prefill_seconds,
                seconds_per_byte=per_byte,
                spread_median=pricing.link.spread.quantile(0.5),
                spread_high=pricing.link.spread.quantile(quantile),
                in_flight=0,
                observations=pricing.link.n,
            ),
        ),
        live=Live(
            prefill_step_seconds=pricing.prefill.coefficients[0],
            prefill_token_seconds=pricing.prefill.coefficients[1],
            prefill_pair_seconds=pricing.prefill.coefficients[2],
            prefill_median=pricing.prefill.spread.quantile(pricing.terms.recompute_quantile),
            prefill_observations=pricing.prefill.n,
            chunk_tokens=pricing.chunk_tokens,
            dispatch_seconds=dispatch_seconds,
        ),
        arm=arm,
    )
    decision = decide(facts, pricing.terms)
    if decision.loads and deadline_seconds is not None and decision.load_high_seconds > deadline_seconds:
        decision = msgspec.structs.replace(decision, end_block=local_tokens, reason=Reason.DEADLINE)
    return facts, decision
