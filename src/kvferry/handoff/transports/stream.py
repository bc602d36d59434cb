"""The contract of a hand-off over any byte stream: messages with a header, in order.

Owns the order of the messages. Refuses to know what carries the bytes (`tcp.py`, `shm.py`).
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from ...clock import Clock
from ...outcomes import Outcome
from ..wire.failed import Cut, Damaged, HandoffFailed
from ..wire.legs import SenderLegs
from ..wire.manifest import MOST_MANIFEST_BYTES
from ..wire.message import HEADER_BYTES, Header, Kind, digest_of, header_of, parse_header
from .contract import Answer, Receipt, Vector

__all__ = ["ByteStream", "StreamIncoming", "StreamOutgoing"]

_MOST_WORDS = 1 << 20
_MOST_PING = 64 << 20
_SILENT_SECONDS = 10.0
T = TypeVar("T")


class ByteStream(Protocol):
    """Bytes both ways, in order. Raises `Cut` where the other side is gone, and late at the deadline."""

    def send(self, parts: Vector, deadline: float) -> None:
        """All of it; may return before the other side has read it."""

    def fill(self, parts: Vector, deadline: float) -> None:
        """Read until every buffer is full."""

    def close(self) -> None: ...


class _End:
    """What both ends share: single messages."""

    def __init__(self, stream: ByteStream, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._header = memoryview(bytearray(HEADER_BYTES))

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()

    def _send(self, kind: Kind, payload: bytes | memoryview, deadline: float, index: int = 0) -> None:
        parts = [memoryview(payload)] if len(payload) else []
        header = header_of(kind, index, len(payload), digest_of(parts))
        self._stream.send([memoryview(header), *parts], deadline)

    def _next(self, kind: Kind, deadline: float) -> Header:
        self._stream.fill([self._header], deadline)
        header = parse_header(self._header)
        if header.kind is not kind:
            raise Damaged(f"{header.kind.name} came where {kind.name} was due")
        return header

    def _payload(self, header: Header, most_bytes: int, deadline: float) -> bytearray:
        if header.payload_bytes > most_bytes:
            raise Damaged(f"{header.kind.name} of {header.payload_bytes} bytes; {most_bytes} are the most")
        data = bytearray(header.payload_bytes)
        view = memoryview(data)
        self._stream.fill([view] if data else [], deadline)
        if digest_of([view]) != header.digest:
            raise Damaged(f"{header.kind.name} fails its checksum")
        return data

    def _words(self, kind: Kind, type_: type[T], deadline: float) -> T:
        data = self._payload(self._next(kind, deadline), _MOST_WORDS, deadline)
        try:
            return msgspec.json.decode(data, type=type_)
        except msgspec.DecodeError as error:
            raise HandoffFailed(Outcome.INCOMPATIBLE, f"{kind.name}: {error}") from error


class StreamOutgoing(_End):
    """The sender's end of a stream."""

    wants_digest = True

    def offer(self, manifest: bytes, chunks: int, deadline: float) -> Answer:
        self._send(Kind.OFFER, manifest, deadline)
        return self._words(Kind.ANSWER, Answer, deadline)

    def chunk(self, index: int, payload: Vector, digest: bytes, deadline: float) -> None:
        size = sum(part.nbytes for part in payload)
        header = header_of(Kind.CHUNK, index, size, digest)
        self._stream.send([memoryview(header), *payload], deadline)

    def finish(self, legs: SenderLegs, deadline: float) -> Receipt:
        self._send(Kind.DONE, msgspec.json.encode(legs), deadline)
        return self._words(Kind.RECEIPT, Receipt, deadline)

    def round_trip(self, payload: memoryview, deadline: float) -> float:
        began = self._clock.now()
        self._send(Kind.PING, payload, deadline)
        self._next(Kind.PONG, deadline)
        return self._clock.now() - began


class StreamIncoming(_End):
    """The receiver's end of a stream."""

    def take_offer(self, deadline: float) -> bytes:
        while True:
            patience = self._clock.now() + _SILENT_SECONDS
            try:
                self._stream.fill([self._header], min(deadline, patience))
            except HandoffFailed as failure:
                if failure.cause is Outcome.LATE and patience < deadline:
                    raise Cut("a sender connected and said nothing") from failure
                raise
            header = parse_header(self._header)
            if header.kind is Kind.OFFER:
                return bytes(self._payload(header, MOST_MANIFEST_BYTES, deadline))
            if header.kind is not Kind.PING:
                raise Damaged(f"{header.kind.name} came where OFFER was due")
            self._payload(header, _MOST_PING, deadline)
            self._send(Kind.PONG, b"", deadline)

    def answer(self, answer: Answer, deadline: float) -> None:
        self._send(Kind.ANSWER, msgspec.json.encode(answer), deadline)

    def chunk(self, index: int, into: Vector, deadline: float) -> None:
        header = self._next(Kind.CHUNK, deadline)
        if header.index != index:
            raise Damaged(f"chunk {header.index} came where chunk {index} was due")
        size = sum(part.nbytes for part in into)
        if header.payload_bytes != size:
            raise Damaged(f"chunk {index} has {header.payload_bytes} bytes, not {size}")
        self._stream.fill(into, deadline)
        if digest_of(into) != header.digest:
            raise Damaged(f"chunk {index} fails its checksum")

    def trailer(self, deadline: float) -> SenderLegs:
        return self._words(Kind.DONE, SenderLegs, deadline)

    def receipt(self, receipt: Receipt, deadline: float) -> None:
        self._send(Kind.RECEIPT, msgspec.json.encode(receipt), deadline)
