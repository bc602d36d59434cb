"""The facts of one offer: what is found where, what loads and prefill take here, and who waits.

Free blocks are no fact here. They are vLLM's to give, and where they are short it admits neither way: a veto
would only turn a load that waits into a computation that waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....cache.estimates import Estimates
from ....cache.settings import CacheSettings
from ....gate.facts import Facts, GateTerms, Segment
from .passing import Passing
from .settings import KINDS
from .transfers import Transfers

__all__ = ["facts_of"]

_NO_CAP = 1 << 40


def facts_of(
    passing: Passing,
    *,
    settings: CacheSettings,
    terms: GateTerms,
    estimates: Estimates,
    transfers: Transfers,
    ahead: Iterable[Passing],
    decoding: int,
    chunk_tokens: int,
) -> Facts:
    """Everything that the decision on `passing` may know now.

    `ahead` are the requests whose prompts are being computed, `decoding` is how many generate tokens. The
    whole offer is one segment: only the sum of what a connector's tiers take can be seen from outside.
    """
    books, size = passing.books, settings.block_tokens
    stop = (books.local_tokens + passing.found_tokens) // size
    segments: tuple[Segment, ...] = ()
    if stop > books.local_tokens // size:
        leg, in_flight = estimates.legs[0], len(transfers)
        setup, per_byte = leg.coefficients
        segments = (
            Segment(
                tier=KINDS.index(transfers.kind),
                stop_block=stop,
                setup_seconds=setup,
                seconds_per_byte=per_byte * (in_flight + 1),
                spread_median=leg.spread.quantile(0.5),
                spread_high=leg.spread.quantile(terms.load_quantile),
                in_flight=in_flight,
                observations=leg.n,
            ),
        )
    queued = sum(
        max(0, other.books.tokens - other.engine.num_computed_tokens)
        for other in ahead
        if other is not passing
    )
    return Facts(
        prompt_tokens=books.tokens,
        local_tokens=books.local_tokens,
        block_tokens=size,
        bytes_per_token=settings.bytes_per_token,
        segments=segments,
        live=estimates.live(
            terms,
            chunk_tokens=chunk_tokens,
            queued_tokens=queued,
            running_requests=decoding,
            free_blocks=_NO_CAP,
        ),
        arm=books.arm,
        # The connector has looked already, and does so whatever is decided: no reason against its load.
        lookup_seconds=0.0,
        max_load_tokens=books.max_load_tokens,
        explore=books.explore,
    )
