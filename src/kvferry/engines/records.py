"""From a settled account to a line of decisions.jsonl, the same for every engine."""

from __future__ import annotations

from collections.abc import Sequence

from ..cache.account import Account
from ..config import RequestFields
from ..keys.pool import record_key
from ..outcomes import HITS, Outcome
from ..runs.decisions import SCHEMA_VERSION, Actual, DecisionRecord, LoadRecord
from ..store.tier import Kind
from ..telemetry.accounts import path_of

__all__ = ["record_of"]


def record_of(
    account: Account,
    *,
    replica: str,
    arrival_wall_seconds: float,
    data_class: str,
    block_tokens: int,
    bytes_per_token: int,
    kinds: Sequence[Kind],
    fields: RequestFields,
    ttft_seconds: float | None,
) -> DecisionRecord:
    """The record of one request."""
    return DecisionRecord(
        version=SCHEMA_VERSION,
        request_id=account.rid,
        replica=replica,
        arrival=arrival_wall_seconds,
        tenant_class=data_class,
        mode=account.mode,
        path=path_of(account, kinds).value,
        prompt_tokens=account.prompt_tokens,
        block_tokens=block_tokens,
        bytes_per_token=bytes_per_token,
        keys=tuple(map(record_key, account.keys)),
        found_end_block=account.found_end,
        facts=account.facts,
        terms=account.terms,
        decision=account.decision,
        outcome=_main_outcome(account),
        ledger=dict(account.ledger),
        loads=tuple(
            LoadRecord(
                tier=kinds[run.tier].value,
                start_block=run.start,
                stop_block=run.stop,
                good_blocks=run.good,
                bytes=run.legs.bytes,
                queue_seconds=run.legs.queue_seconds,
                wire_seconds=run.legs.wire_seconds,
                install_seconds=run.legs.install_seconds,
                in_flight=run.legs.in_flight,
                cause=run.cause,
                detail=run.detail,
            )
            for run in account.loads
        ),
        actual=Actual(
            lookup_seconds=account.lookup_seconds,
            load_seconds=account.load_seconds,
            recompute_seconds=account.recompute_seconds,
            prefill_seconds=account.prefill_seconds,
            computed_tokens=account.computed_tokens,
            ready_seconds=account.ready_seconds,
            ttft_seconds=ttft_seconds,
        ),
        fallback=account.fallback,
        lost_seconds=account.lost_seconds,
        aborted=account.aborted,
        published=account.published,
        alien_fields=account.alien_fields,
        decision_id=fields.decision_id or "",
        notes=account.notes,
    )


def _main_outcome(account: Account) -> Outcome | None:
    """What most tokens of the blocks on offer ended in; of the whole prompt where nothing was on offer."""
    decision = account.decision
    offered = decision is not None and decision.candidate_bytes > 0
    left = {
        outcome: tokens
        for outcome, tokens in account.ledger.items()
        if not (offered and outcome in (Outcome.DEVICE_HIT, Outcome.PARTIAL_BLOCK, Outcome.NEVER_PUBLISHED))
    }
    if account.fallback is not None:
        return account.fallback
    if not left:
        return None
    # A hit counts before what was computed beside it.
    return max(left, key=lambda o: (offered and o in HITS, left[o]))
