"""decisions.jsonl: one versioned record per request, enough to replay its decision and to judge it.

Producers: live engines (through `record_of`) and the simulator. Readers: `kvferry why`, the demo's checks,
trace tools, reports. Aborted requests are recorded like all others. Keys are keyed hashes: without the
tenant's secret they say nothing of the prompt.
"""

from __future__ import annotations

import msgspec

from ..errors import FormatError
from ..gate.facts import Decision, Facts, GateTerms
from ..outcomes import Outcome

__all__ = ["SCHEMA_VERSION", "Actual", "DecisionRecord", "LoadRecord", "decode_record", "encode_record"]

SCHEMA_VERSION = 1


class LoadRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One load of one segment: blocks `[start_block, stop_block)`, the first `good_blocks` usable."""

    tier: str
    start_block: int
    stop_block: int
    good_blocks: int
    bytes: int = 0
    queue_seconds: float = 0.0
    wire_seconds: float = 0.0
    install_seconds: float = 0.0
    in_flight: float = 1.0
    cause: Outcome | None = None
    detail: str = ""


class Actual(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened, in seconds; None where it did not happen."""

    lookup_seconds: float = 0.0
    load_seconds: float | None = None
    """On the critical path: from the decision to usable blocks, or to giving up."""
    recompute_seconds: float | None = None
    """Measured prefill (its wait included), scaled to the blocks that were on offer."""
    prefill_seconds: float = 0.0
    computed_tokens: int = 0
    ready_seconds: float | None = None
    ttft_seconds: float | None = None


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request."""

    version: int
    request_id: str
    replica: str
    arrival: float
    """Wall clock, seconds since the epoch."""
    tenant_class: str
    """Data class of the request; never the tenant."""
    mode: str
    path: str
    """How the prompt became ready: cold, a hit (local, host, disk or pool), handoff, declined, fallback."""
    prompt_tokens: int
    block_tokens: int
    bytes_per_token: int
    keys: tuple[str, ...] = ()
    """Of the prompt's full blocks, in order (`keys.record_key`)."""
    found_end_block: int = 0
    facts: Facts | None = None
    terms: GateTerms
    decision: Decision | None = None
    outcome: Outcome | None = None
    """What most tokens of the blocks on offer ended in; of the prompt where nothing was on offer."""
    ledger: dict[Outcome, int]
    loads: tuple[LoadRecord, ...] = ()
    actual: Actual
    fallback: Outcome | None = None
    lost_seconds: float = 0.0
    aborted: bool = False
    published: tuple[tuple[int, int], ...] = ()
    """Runs of blocks sent to be stored."""
    alien_fields: str = ""
    decision_id: str = ""
    arm_label: str = ""
    """What an experiment called this request; empty in production."""
    notes: tuple[str, ...] = ()

    @property
    def offered_tokens(self) -> int:
        """Tokens that could have been loaded: held by tiers beyond the local hit."""
        if self.facts is None:
            return 0
        return max(0, self.found_end_block * self.block_tokens - self.facts.local_tokens)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(DecisionRecord)


def encode_record(record: DecisionRecord) -> bytes:
    """One line of decisions.jsonl, without the newline."""
    return _ENCODER.encode(record)


def decode_record(line: bytes | str) -> DecisionRecord:
    """The record of one line. Raises FormatError when it is not one, or is of another version."""
    try:
        record = _DECODER.decode(line)
    except msgspec.DecodeError as error:
        raise FormatError(f"not a decision record: {error}") from error
    if record.version != SCHEMA_VERSION:
        raise FormatError(f"decision record of version {record.version}; this kvferry reads {SCHEMA_VERSION}")
    return record
