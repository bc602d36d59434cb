"""What the cache reports of a settled request: complete enough to replay the decision and to judge it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..gate.facts import Arm, Decision, Facts, GateTerms
from ..outcomes import Outcome
from .commands import Legs

__all__ = ["Account", "LoadedRun", "lost_seconds"]


class LoadedRun(msgspec.Struct, frozen=True):
    """One load of one segment, as it went."""

    tier: int
    start: int
    stop: int
    good: int
    legs: Legs
    cause: Outcome | None = None
    detail: str = ""


class Account(msgspec.Struct, frozen=True):
    """One request, from arrival to its end. Blocks are counted from the prompt's first."""

    rid: str
    arrived: float
    arm: Arm
    mode: str
    prompt_tokens: int
    keys: Sequence[bytes]
    found_end: int
    """One past the last block that could have been used: held locally, or in tiers without a gap."""
    facts: Facts | None
    terms: GateTerms
    decision: Decision | None
    ledger: Mapping[Outcome, int]
    loads: Sequence[LoadedRun]
    lookup_seconds: float
    load_seconds: float | None
    """From the decision to usable blocks, or to giving up: on the request's critical path."""
    recompute_seconds: float | None
    """Measured, scaled to the blocks that were on offer; None when they were loaded."""
    prefill_seconds: float
    computed_tokens: int
    ready_seconds: float | None
    """From arrival to a ready prompt; None when aborted."""
    aborted: bool
    fallback: Outcome | None
    """Why a load that was begun did not bring all of its blocks."""
    lost_seconds: float
    published: tuple[tuple[int, int], ...] = ()
    """Runs of blocks that were sent to be stored."""
    alien_fields: str = ""
    notes: tuple[str, ...] = ()


def lost_seconds(
    decision: Decision | None,
    *,
    load_seconds: float | None,
    recompute_seconds: float | None,
    spared_seconds: float,
) -> float:
    """What the other choice was predicted to save, where the choice turned out wrong; else 0.

    A load is judged by `spared_seconds`, the predicted recompute of the blocks that it did bring, so one that
    brought nothing lost all the time that was waited for it; a recompute is judged by the predicted load.
    """
    if decision is None or decision.candidate_bytes == 0:
        return 0.0
    if decision.loads:
        return 0.0 if load_seconds is None else max(0.0, load_seconds - spared_seconds)
    if recompute_seconds is None:
        return 0.0
    return max(0.0, recompute_seconds - decision.load_median_seconds - decision.interference_seconds)
