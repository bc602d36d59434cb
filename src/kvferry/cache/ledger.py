"""Books every token of a prompt once: the parts of a ledger sum to the prompt.

Denominator: the prompt's tokens, all of them. A block counts for the tokens that it covers beyond what the
engine held locally, so a local hit that ends inside a block is not booked twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ..outcomes import Outcome
from .commands import Status

__all__ = ["book", "cause_of"]

_CAUSES = {
    Status.ABSENT: Outcome.NEVER_PUBLISHED,
    Status.GHOST: Outcome.EVICTED,
    Status.LEASED: Outcome.NEVER_PUBLISHED,
    Status.ALIEN: Outcome.INCOMPATIBLE,
    Status.FAILED: Outcome.FAILED,
}


def cause_of(status: int) -> Outcome:
    """Why a block with this probe status is computed when nobody tried to load it."""
    return Outcome.DECLINED if status >= Status.TIER else _CAUSES[Status(status)]


def book(
    *,
    prompt_tokens: int,
    block_tokens: int,
    local_tokens: int,
    loaded: Sequence[tuple[int, int, Outcome]],
    blocks: bytes,
    unknown: Outcome,
    failure: tuple[int, Outcome] | None,
    aborted_from: int | None,
) -> dict[Outcome, int]:
    """Tokens per outcome.

    `loaded` are runs (start block, stop block, where from), in order and contiguous from the local blocks.
    `blocks` holds a probe status for each block from the first; where it is too short, `unknown` is the
    cause. `failure` is (block, cause) of a load that ended there: blocks from it on that are held take
    this cause. `aborted_from` is the token from which nothing was computed, because the request ended.
    """
    parts: dict[Outcome, int] = {}

    def add(outcome: Outcome, tokens: int) -> None:
        if tokens > 0:
            parts[outcome] = parts.get(outcome, 0) + tokens

    local = min(local_tokens, prompt_tokens)
    add(Outcome.DEVICE_HIT, local)
    at = local
    for _, stop, outcome in loaded:
        end = min(stop * block_tokens, prompt_tokens)
        add(outcome, end - at)
        at = max(at, end)
    end_of_work = prompt_tokens if aborted_from is None else max(at, aborted_from)

    full_blocks = prompt_tokens // block_tokens
    usable_blocks = (prompt_tokens - 1) // block_tokens if prompt_tokens else 0

    def add_span(outcome: Outcome, start: int, stop: int) -> None:
        """Tokens `[start, stop)`; those that nobody came to compute are aborted."""
        start = max(start, at)
        add(outcome, min(stop, end_of_work) - start)
        add(Outcome.ABORTED, stop - max(start, end_of_work))

    gap: Outcome | None = None
    block = at // block_tokens
    known = blocks[block:usable_blocks]
    for status, run in groupby(known):
        length = sum(1 for _ in run)
        stop = block + length
        cause = cause_of(status)
        if status >= Status.TIER:
            if gap is not None:
                # Held, but behind a block that is not: it could not be used, for that block's reason.
                cause = gap
            elif failure is not None and stop > failure[0]:
                cut = max(block, failure[0])
                add_span(Outcome.DECLINED, block * block_tokens, cut * block_tokens)
                block, cause = cut, failure[1]
                gap = cause
        elif gap is None:
            gap = cause
        add_span(cause, block * block_tokens, stop * block_tokens)
        block = stop
    if block < usable_blocks:
        add_span(unknown, block * block_tokens, usable_blocks * block_tokens)
    # The last full block of a prompt that ends with it: its last token has to be computed.
    add_span(Outcome.NOT_CACHEABLE, usable_blocks * block_tokens, full_blocks * block_tokens)
    add_span(Outcome.PARTIAL_BLOCK, full_blocks * block_tokens, prompt_tokens)
    return parts
