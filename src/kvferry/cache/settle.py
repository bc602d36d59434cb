"""Closes the books of one request: ledger, fallback, measured times, seconds lost."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..gate.decide import recompute_seconds
from ..gate.facts import GateTerms
from ..outcomes import Outcome
from .account import Account, lost_seconds
from .commands import Status
from .ledger import book
from .requests import Request
from .settings import CacheSettings

__all__ = ["Ending", "settle"]

_FAILED = int(Status.FAILED)


class Ending(msgspec.Struct, frozen=True):
    """What the engine says of a request that is over."""

    aborted: bool = False
    computed_tokens: int = 0
    """Prompt tokens that were computed for it."""
    prefill_seconds: float = 0.0
    """What computing them took."""
    dispatch_seconds: float = 0.0
    """How long they waited for the engine after the decision."""
    ready_seconds: float | None = None
    """From arrival to a ready prompt, where `computed` was not called: a prompt without a whole block."""


def settle(
    request: Request,
    ending: Ending,
    *,
    settings: CacheSettings,
    terms: GateTerms,
    mode: str,
    prefill_seconds: Callable[[int, int, int], float],
) -> Account:
    """The account. `prefill_seconds(tokens, context, chunk)` predicts, and scales what was measured."""
    facts, decision = request.facts, request.decision
    size = settings.block_tokens
    local_blocks = request.local_tokens // size
    loaded = []
    for run in request.loads:
        stop = min(run.start + run.good, request.usable_end)
        # What another replica computed for this very request is no prefix hit.
        handed = min(stop, request.handoff_end)
        if handed > run.start:
            loaded.append((run.start, handed, Outcome.HANDOFF))
        if stop > max(run.start, handed):
            loaded.append((max(run.start, handed), stop, settings.tiers[run.tier]))
    hit_tokens = max(request.local_tokens, request.usable_end * size)
    ready = None if request.ready_at is None else request.ready_at - request.arrived
    unfinished = ending.aborted and ready is None
    ledger = book(
        prompt_tokens=request.tokens,
        block_tokens=size,
        local_tokens=request.local_tokens,
        loaded=loaded,
        blocks=request.status,
        unknown=request.unknown,
        failure=request.failure,
        aborted_from=hit_tokens + ending.computed_tokens if unfinished else None,
    )
    recompute: float | None = None
    if decision is not None and facts is not None and not decision.loads and ending.computed_tokens > 0:
        # What was measured covers the tail too: scale it to the blocks that were on offer.
        chunk = facts.live.chunk_tokens
        whole = prefill_seconds(ending.computed_tokens, request.local_tokens, chunk)
        offered = max(0, decision.candidate_end_block * size - request.local_tokens)
        part = prefill_seconds(min(offered, ending.computed_tokens), request.local_tokens, chunk)
        share = part / whole if whole > 0.0 else 1.0
        recompute = ending.dispatch_seconds + ending.prefill_seconds * min(1.0, share)
    return Account(
        rid=request.rid,
        arrived=request.arrived,
        arm=request.arm,
        mode=mode,
        prompt_tokens=request.tokens,
        keys=request.keys,
        found_end=max(local_blocks, facts.segments[-1].stop_block)
        if facts and facts.segments
        else local_blocks,
        facts=facts,
        terms=terms,
        decision=decision,
        ledger=ledger,
        loads=tuple(request.loads),
        lookup_seconds=request.lookup_seconds,
        load_seconds=request.load_seconds,
        recompute_seconds=recompute,
        prefill_seconds=ending.prefill_seconds,
        computed_tokens=ending.computed_tokens,
        ready_seconds=ready,
        aborted=ending.aborted,
        fallback=_fallback(request, unfinished),
        lost_seconds=lost_seconds(
            decision,
            load_seconds=request.load_seconds,
            recompute_seconds=recompute,
            spared_seconds=_spared(request),
        ),
        published=tuple(request.published),
        alien_fields=request.alien_fields,
        notes=tuple(request.notes),
    )


def _spared(request: Request) -> float:
    """Predicted recompute of the blocks that the load brought; all it was to bring, unless it fell short."""
    facts, decision = request.facts, request.decision
    if facts is None or decision is None:
        return 0.0
    if request.failure is None:
        return decision.recompute_seconds
    brought = recompute_seconds(facts, request.usable_end)
    return max(0.0, brought - facts.live.dispatch_seconds)


def _fallback(request: Request, unfinished: bool) -> Outcome | None:
    """Why a cache that was asked did not help: a load that fell short, or a tier that did not answer."""
    if request.failure is not None:
        return request.failure[1]
    if _FAILED in request.status:
        return Outcome.FAILED
    if not unfinished and not request.status and request.unknown in (Outcome.FAILED, Outcome.LATE):
        return request.unknown
    return None
