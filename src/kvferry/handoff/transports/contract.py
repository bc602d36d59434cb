"""Both ends of one connection over which a hand-off crosses.

    sender                         receiver
    offer(manifest)     ------->   take_offer()
                        <-------   answer(Answer)
    chunk(k, rows)      ------->   chunk(k, rows)        k = answer.from_chunk, ... in order
    finish(SenderLegs)  ------->   trailer()
                        <-------   receipt(Receipt)

A transport moves bytes and verifies them; it keeps no more than a window of chunks that nobody has read, so
that a slow receiver holds the sender up. Deadlines are moments on the clock that both ends were made with.
Every method raises HandoffFailed: `Cut` where the other side is gone, `Damaged` for a chunk that fails its
checksum, late where the deadline has passed. Payloads move between the caller's buffers without a copy
where the transport allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from ..wire.legs import ReceiverLegs, SenderLegs

__all__ = ["Answer", "Incoming", "Outgoing", "Receipt", "Vector"]

Vector = Sequence[memoryview]
"""The parts of one payload, in order; byte views, writable when read into."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the receiver says to an offer."""

    take: bool
    reason: str
    """A reason of the gate, or the outcome that the hand-off is refused for."""
    detail: str = ""
    from_chunk: int = 0
    """The first chunk that is still wanted."""
    decision: dict[str, Any] | None = None


class Receipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the receiver says at the end."""

    installed: bool
    detail: str = ""
    legs: ReceiverLegs = ReceiverLegs()


class Outgoing(Protocol):
    """The sender's end."""

    @property
    def wants_digest(self) -> bool:
        """Whether `chunk` sends the digest that it is given; else it makes a checksum of its own."""

    def offer(self, manifest: bytes, chunks: int, deadline: float) -> Answer:
        """Say what there is (`chunks` of it) and hear whether it is wanted."""

    def chunk(self, index: int, payload: Vector, digest: bytes, deadline: float) -> None:
        """Send one chunk; its buffers are the caller's again on return."""

    def finish(self, legs: SenderLegs, deadline: float) -> Receipt:
        """All chunks are sent: hear that they were installed."""

    def round_trip(self, payload: memoryview, deadline: float) -> float:
        """Seconds until the other end has this payload and has said so. Before the offer only."""

    def close(self) -> None:
        """Give up the connection; calling it twice is fine."""


class Incoming(Protocol):
    """The receiver's end."""

    def take_offer(self, deadline: float) -> bytes:
        """The sealed manifest."""

    def answer(self, answer: Answer, deadline: float) -> None:
        """Say whether it is wanted, and from which chunk on."""

    def chunk(self, index: int, into: Vector, deadline: float) -> None:
        """Read chunk `index` into these buffers; on return they hold verified bytes, all of them."""

    def trailer(self, deadline: float) -> SenderLegs:
        """What it took the sender."""

    def receipt(self, receipt: Receipt, deadline: float) -> None:
        """Say how it ended."""

    def close(self) -> None:
        """Give up the connection; calling it twice is fine."""
