"""Closes the books of one request that passed the gate: every token once, and what really happened.

Owns what differs from a cache of our own: loads that ran although the gate only watched are judged as loads,
and tokens behind the last whole block that the connector brought all the same are booked as brought.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from ....cache.account import Account
from ....cache.commands import TIER, Status
from ....cache.settings import CacheSettings
from ....cache.settle import Ending, settle
from ....gate.facts import GateTerms
from ....outcomes import Outcome
from .passing import Passing

__all__ = ["close_books"]

_ABSENT = int(Status.ABSENT)
# Of the tokens behind the last whole block that was brought, those that are booked otherwise.
_TAIL = (Outcome.PARTIAL_BLOCK, Outcome.NOT_CACHEABLE, Outcome.NEVER_PUBLISHED, Outcome.DECLINED)


def close_books(
    passing: Passing,
    ending: Ending,
    *,
    settings: CacheSettings,
    terms: GateTerms,
    mode: str,
    prefill_seconds: Callable[[int, int, int], float],
) -> Account:
    """The account of a request that is over."""
    books = passing.books
    size = settings.block_tokens
    blocks = books.tokens // size
    if passing.answered:
        # Beyond what it offers, a connector does not say whether it ever held a block.
        offered = min(blocks, (books.local_tokens + passing.found_tokens) // size)
        books.status = bytes([TIER]) * offered + bytes([_ABSENT]) * (blocks - offered)
    books.loads = list(passing.runs)
    account = settle(
        books,
        ending,
        settings=settings,
        terms=terms,
        mode=mode,
        prefill_seconds=prefill_seconds,
    )
    if passing.runs and books.failure is None:
        reached = min(books.local_tokens + passing.external_tokens, books.tokens - 1)
        outcome = settings.tiers[passing.runs[-1].tier]
        ledger = _moved(account.ledger, reached - books.usable_end * size, outcome)
        account = msgspec.structs.replace(account, ledger=ledger)
    decision = account.decision
    if passing.runs and decision is not None and not decision.loads:
        # Watched, not vetoed: what happened is a load, and it is judged by what computing was to take.
        lost = 0.0
        if account.load_seconds is not None and decision.candidate_bytes:
            lost = max(0.0, account.load_seconds - decision.recompute_seconds)
        account = msgspec.structs.replace(account, recompute_seconds=None, lost_seconds=lost)
    return account


def _moved(ledger: Mapping[Outcome, int], tokens: int, outcome: Outcome) -> dict[Outcome, int]:
    """`tokens` of the tail are booked under `outcome`; the sum stays."""
    parts = dict(ledger)
    for part in _TAIL:
        moved = min(parts.get(part, 0), tokens)
        if moved > 0:
            parts[part] -= moved
            parts[outcome] = parts.get(outcome, 0) + moved
            tokens -= moved
    return {part: count for part, count in parts.items() if count}
