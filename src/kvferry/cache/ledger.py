"""Books every token of a prompt once: the parts of a ledger sum to the prompt.

Denominator: the prompt's tokens, all of them. A block counts for the tokens that it covers beyond what the
engine held locally, so a local hit that ends inside a block is not booked twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..outcomes import Outcome
from .commands import TIER, Status

__all__ = ["book", "cause_of"]

# Members by plain names and numbers: reaching one through its class, and its hash, cost as much as a call.
_DEVICE_HIT, _ABORTED, _DECLINED = Outcome.DEVICE_HIT, Outcome.ABORTED, Outcome.DECLINED
_NOT_CACHEABLE, _PARTIAL_BLOCK = Outcome.NOT_CACHEABLE, Outcome.PARTIAL_BLOCK
_CAUSES = {
    int(Status.ABSENT): Outcome.NEVER_PUBLISHED,
    int(Status.GHOST): Outcome.EVICTED,
    int(Status.LEASED): Outcome.NEVER_PUBLISHED,
    int(Status.ALIEN): Outcome.INCOMPATIBLE,
    int(Status.FAILED): Outcome.FAILED,
}


def cause_of(status: int) -> Outcome:
    """Why a block with this probe status is computed when nobody tried to load it."""
    return _DECLINED if status >= TIER else _CAUSES[status]


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
    add(_DEVICE_HIT, local)
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
        add(_ABORTED, stop - max(start, end_of_work))

    gap: Outcome | None = None
    block = at // block_tokens
    known_end = min(len(blocks), usable_blocks)
    while block < known_end:
        status = blocks[block]
        stop = known_end - len(blocks[block:known_end].lstrip(blocks[block : block + 1]))
        cause = cause_of(status)
        if status >= TIER:
            if gap is not None:
                # Held, but behind a block that is not: it could not be used, for that block's reason.
                cause = gap
            elif failure is not None and stop > failure[0]:
                cut = max(block, failure[0])
                add_span(_DECLINED, block * block_tokens, cut * block_tokens)
                block, cause = cut, failure[1]
                gap = cause
        elif gap is None:
            gap = cause
        add_span(cause, block * block_tokens, stop * block_tokens)
        block = stop
    if block < usable_blocks:
        add_span(unknown, block * block_tokens, usable_blocks * block_tokens)
    # The last full block of a prompt that ends with it: its last token has to be computed.
    add_span(_NOT_CACHEABLE, usable_blocks * block_tokens, full_blocks * block_tokens)
    add_span(_PARTIAL_BLOCK, full_blocks * block_tokens, prompt_tokens)
    return parts
