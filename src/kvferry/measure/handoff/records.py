"""A hand-off as a line of decisions.jsonl, so that `kvferry why` tells it like any other decision.

Blocks are single tokens there: a hand-off is taken or declined as one. Its tier is called p2p, since another
replica's memory is where the KV came from, whatever it crossed on the way.
"""

from __future__ import annotations

from ...gate.facts import GateTerms
from ...outcomes import Outcome
from ...runs.decisions import SCHEMA_VERSION, Actual, DecisionRecord, LoadRecord
from ...store.tier import Kind
from .decoding import Answered

__all__ = ["handoff_record"]


def handoff_record(
    answered: Answered,
    *,
    request_id: str,
    replica: str,
    arrival_wall_seconds: float,
    data_class: str,
    terms: GateTerms,
    transport: str,
) -> DecisionRecord:
    """The record of one request on the decode node."""
    received = answered.received
    manifest, legs = received.manifest, received.receiver
    tokens = sum(answered.ledger.values())
    handed = 0 if manifest is None else manifest.tokens
    installed = received.cause is None
    declined = received.cause is Outcome.DECLINED
    loads: tuple[LoadRecord, ...] = ()
    if not declined and manifest is not None and received.decision is not None:
        loads = (
            LoadRecord(
                tier=Kind.P2P.value,
                start_block=0,
                stop_block=handed,
                good_blocks=handed if installed else 0,
                bytes=legs.bytes,
                wire_seconds=legs.receive_seconds,
                install_seconds=legs.decode_seconds + legs.host_to_device_seconds,
                cause=received.cause,
                detail=received.detail,
            ),
        )
    notes = [f"hand-off over {transport}"]
    if manifest is not None:
        notes.append(f"codec {manifest.codec}; prefill {'sunk' if manifest.sunk else 'asked for first'}")
    if answered.mapped:
        notes.append(f"mapped from another model by {answered.mapped[:16]}: lossy, and permitted here")
    if received.cause is not None and not loads and received.detail:
        notes.append(received.detail)
    if answered.dominant:
        notes.append(f"longest leg: {answered.dominant}")
    if received.resumed_from:
        notes.append(f"resumed from chunk {', '.join(map(str, received.resumed_from))}")
    return DecisionRecord(
        version=SCHEMA_VERSION,
        request_id=request_id,
        replica=replica,
        arrival=arrival_wall_seconds,
        tenant_class=data_class,
        mode="on",
        path="handoff" if installed else "declined" if declined else "fallback",
        prompt_tokens=tokens,
        block_tokens=1,
        bytes_per_token=0 if received.facts is None else received.facts.bytes_per_token,
        found_end_block=handed,
        facts=received.facts,
        terms=terms,
        decision=received.decision,
        outcome=Outcome.HANDOFF if installed else received.cause,
        ledger=answered.ledger,
        loads=loads,
        actual=Actual(
            load_seconds=legs.ready_seconds,
            recompute_seconds=None if installed else answered.local_prefill_seconds,
            prefill_seconds=answered.local_prefill_seconds,
            computed_tokens=tokens - (handed if installed else 0),
            ready_seconds=legs.ready_seconds if installed else answered.local_prefill_seconds,
            ttft_seconds=answered.first_token_seconds,
        ),
        fallback=None if installed or declined else received.cause,
        notes=tuple(notes),
    )
