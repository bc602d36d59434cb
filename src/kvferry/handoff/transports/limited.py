"""A sender's end that is held to a rate: a slow link, for experiments and for sparing one that others use.

Bytes are paid for before they are sent, chunk by chunk; an idle link saves up nothing.
"""

from __future__ import annotations

from ...clock import Clock
from ..wire.failed import late
from ..wire.legs import SenderLegs
from .contract import Answer, Outgoing, Receipt, Vector

__all__ = ["LimitedOutgoing"]


class LimitedOutgoing:
    """`outgoing`, at no more than `bytes_per_second`."""

    def __init__(self, outgoing: Outgoing, bytes_per_second: float, clock: Clock) -> None:
        if not bytes_per_second > 0:
            raise ValueError(f"a link of {bytes_per_second} bytes a second carries nothing")
        self._outgoing, self._rate, self._clock = outgoing, bytes_per_second, clock
        self._free_at = clock.now()
        self.wants_digest = outgoing.wants_digest

    def offer(self, manifest: bytes, chunks: int, deadline: float) -> Answer:
        return self._outgoing.offer(manifest, chunks, deadline)

    def chunk(self, index: int, payload: Vector, digest: bytes, deadline: float) -> None:
        self._pay(sum(part.nbytes for part in payload), deadline)
        self._outgoing.chunk(index, payload, digest, deadline)

    def finish(self, legs: SenderLegs, deadline: float) -> Receipt:
        return self._outgoing.finish(legs, deadline)

    def round_trip(self, payload: memoryview, deadline: float) -> float:
        began = self._clock.now()
        self._pay(payload.nbytes, deadline)
        self._outgoing.round_trip(payload, deadline)
        return self._clock.now() - began

    def close(self) -> None:
        self._outgoing.close()

    def _pay(self, size: int, deadline: float) -> None:
        self._free_at = max(self._free_at, self._clock.now()) + size / self._rate
        if self._free_at > deadline:
            raise late("a link that is held to its rate")
        self._clock.sleep(self._free_at - self._clock.now())
