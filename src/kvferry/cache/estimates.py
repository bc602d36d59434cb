"""The estimators of one engine, folded from what happened, and turned into the facts that the gate reads."""

from __future__ import annotations

from ..cost.interference import InterferenceModel
from ..cost.prefill import PrefillModel
from ..cost.spread import Spread
from ..cost.transfer import LegModel
from ..gate.facts import GateTerms, Live, Segment
from ..outcomes import Outcome
from .commands import TIER, Legs

__all__ = ["Estimates"]


class Estimates:
    """Prefill, one leg per tier, lookup and interference."""

    def __init__(self, tiers: int) -> None:
        self.prefill = PrefillModel()
        self.legs = [LegModel() for _ in range(tiers)]
        self.stores = LegModel()
        self.interference = InterferenceModel()
        self.lookup = Spread(assumed=1.0)
        self.loads_in_flight = [0] * tiers
        self._held_for_load_seconds = 0.0

    def prefill_step(self, tokens: int, context: int, seconds: float) -> None:
        """Fold one step of the engine that only computed a prompt."""
        self.prefill.observe(tokens, context, seconds)

    def decode_step(self, seconds: float) -> None:
        """Fold one decode step (seconds per running request)."""
        self.interference.observe_decode(seconds, sum(self.loads_in_flight))

    def held(self, seconds: float) -> None:
        """Requests waited so long because blocks were held for loads."""
        self._held_for_load_seconds += seconds

    def load_done(self, tier: int, legs: Legs, *, wanted_bytes: int, cause: Outcome | None = None) -> None:
        """Fold one load of `wanted_bytes`; `cause` says why it stopped short, None for a whole one.

        One that was cut off tells what it can: how long the bytes took that did arrive, or, where none
        did, that the whole takes longer than this. Without it a link that has become slow would never
        be found out, since no load over it is ever whole. A failure says nothing of the link.
        """
        seconds = legs.wire_seconds + legs.install_seconds
        leg = self.legs[tier]
        if cause is None or (cause is Outcome.LATE and legs.bytes):
            leg.observe(legs.bytes, seconds, legs.in_flight)
        elif cause is Outcome.LATE and seconds > leg.seconds(wanted_bytes, legs.in_flight):
            leg.observe(wanted_bytes, seconds, legs.in_flight)
        self.interference.observe_load(self._held_for_load_seconds)
        self._held_for_load_seconds = 0.0

    def store_done(self, legs: Legs) -> None:
        """Fold one publication."""
        if legs.bytes:
            self.stores.observe(legs.bytes, legs.wire_seconds, legs.in_flight)

    def worth(self, start: int, stop: int, block_tokens: int) -> tuple[float, ...]:
        """Prefill seconds of each of the blocks `[start, stop)`, its context counted."""
        _, b, c = self.prefill.coefficients
        return tuple(
            block_tokens * (b + c * (index * block_tokens + block_tokens / 2)) for index in range(start, stop)
        )

    def segments(self, status: bytes, start: int, terms: GateTerms) -> tuple[Segment, ...]:
        """Consecutive held blocks from `start`, grouped by tier and priced at this moment.

        `status` holds one byte a block from the first of the prompt.
        """
        found: list[Segment] = []
        at, end = start, len(status)
        while at < end and status[at] >= TIER:
            byte = status[at : at + 1]
            stop = end - len(status[at:].lstrip(byte))
            tier = byte[0] - TIER
            leg = self.legs[tier]
            in_flight = self.loads_in_flight[tier]
            setup, per_byte = leg.coefficients
            found.append(
                Segment(
                    tier=tier,
                    stop_block=stop,
                    setup_seconds=setup,
                    seconds_per_byte=per_byte * (in_flight + 1),
                    spread_median=leg.spread.quantile(0.5),
                    spread_high=leg.spread.quantile(terms.load_quantile),
                    in_flight=in_flight,
                    observations=leg.n,
                )
            )
            at = stop
        return tuple(found)

    def live(
        self,
        terms: GateTerms,
        *,
        chunk_tokens: int,
        queued_tokens: int,
        running_requests: int,
        free_blocks: int,
    ) -> Live:
        """The engine's state with prices; `queued_tokens` of prefill wait before this request's."""
        a, b, c = self.prefill.coefficients
        return Live(
            prefill_step_seconds=a,
            prefill_token_seconds=b,
            prefill_pair_seconds=c,
            prefill_median=self.prefill.spread.quantile(terms.recompute_quantile),
            prefill_observations=self.prefill.n,
            chunk_tokens=chunk_tokens,
            dispatch_seconds=self.prefill.seconds(queued_tokens, 0, chunk_tokens),
            running_requests=running_requests,
            decode_growth=self.interference.growth,
            held_seconds_per_load=self.interference.held_seconds_per_load,
            free_blocks=free_blocks,
        )
