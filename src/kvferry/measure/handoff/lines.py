"""What a hand-off came to, as one JSON object for each side: figures, no prompt."""

from __future__ import annotations

from typing import Any

from ...gate.facts import Decision
from ...handoff.transports.probe import LinkFigures
from ...handoff.wire.legs import dominant_leg, legs_of
from .decoding import Answered
from .prefilling import HandedOver

__all__ = ["receive_line", "send_line"]


def receive_line(answered: Answered, text: str) -> dict[str, Any]:
    """The decode node's."""
    received = answered.received
    manifest = received.manifest
    return {
        "id": "" if manifest is None else manifest.handoff_id,
        "taken": received.cause is None,
        "reason": "" if received.decision is None else received.decision.reason.value,
        "cause": None if received.cause is None else received.cause.value,
        "detail": received.detail,
        "codec": "" if manifest is None else manifest.codec,
        "mapped": answered.mapped,
        "sunk": None if manifest is None else manifest.sunk,
        "prompt_tokens": sum(answered.ledger.values()),
        "ledger": {outcome.value: tokens for outcome, tokens in answered.ledger.items()},
        "bytes": received.payload_bytes,
        "predicted": _predicted(received.decision),
        "first_layer_seconds": received.receiver.first_layer_seconds,
        "ready_seconds": received.receiver.ready_seconds,
        "first_token_seconds": answered.first_token_seconds,
        "local_prefill_seconds": answered.local_prefill_seconds,
        "legs": answered.legs,
        "dominant_leg": answered.dominant,
        "resumed_from": list(received.resumed_from),
        "token_ids": list(answered.token_ids),
        "text": text,
    }


def send_line(handed: HandedOver, handoff_id: str, codec: str, link: LinkFigures | None) -> dict[str, Any]:
    """The prefill node's."""
    sent = handed.sent
    receipt = sent.receipt
    return {
        "id": handoff_id,
        "taken": sent.answer.take,
        "reason": sent.answer.reason,
        "detail": sent.answer.detail or ("" if receipt is None else receipt.detail),
        "installed": receipt is not None and receipt.installed,
        "codec": codec,
        "prompt_tokens": handed.prompt_tokens,
        "bytes": handed.payload_bytes,
        "prefill_seconds": handed.prefill_seconds,
        "map_seconds": handed.map_seconds,
        "mapped": handed.mapped,
        "total_seconds": handed.total_seconds,
        "legs": {} if receipt is None else legs_of(sent.legs, receipt.legs),
        "dominant_leg": "" if receipt is None else dominant_leg(sent.legs, receipt.legs),
        "ready_seconds": None if receipt is None else receipt.legs.ready_seconds,
        "attempts": sent.legs.attempts,
        "resumed_from": list(sent.resumed_from),
        "round_trip_seconds": None if link is None else link.round_trip_seconds,
        "bytes_per_second": None if link is None else link.bytes_per_second,
    }


def _predicted(decision: Decision | None) -> dict[str, float] | None:
    """Seconds of both ways, as the gate saw them."""
    if decision is None:
        return None
    return {
        "handoff_p50_seconds": decision.load_median_seconds,
        "handoff_p95_seconds": decision.load_high_seconds,
        "local_prefill_seconds": decision.recompute_seconds,
        "margin_seconds": decision.margin_seconds,
    }
