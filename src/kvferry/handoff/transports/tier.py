"""The contract of a hand-off through a tier: each chunk a frame, and sender and receiver need not meet.

Every value lies under a key that only a holder of the tenant's secret can name; chunks carry the namespace
in their frames, as blocks do, so a chunk of another namespace is never taken. What is written:

    manifest   the sealed manifest, and `bill`, written after it: its length and the number of chunks (8 bytes
               each, little-endian), 1 where the sender waits to hear of it, seven zeros
    chunk k    the encoded chunk
    answer     JSON, filled up to 4 KiB with blanks; so are `trailer` and `receipt`

A receiver holds a lease while it reads, so that two do not share one hand-off, and drops each chunk when it
has it: a tier that is full holds the sender up until then. A sender that does not wait for a receiver
leaves everything and goes; what nobody takes ends with its life in the tier (`ttl_seconds`).
"""

from __future__ import annotations

import hashlib
import secrets
from struct import Struct
from typing import TypeVar

import msgspec

from ...clock import Clock
from ...errors import StoreError, TierTimeout
from ...keys.pool import pool_key
from ...outcomes import Outcome
from ...store.framed import FramedTier
from ...store.tier import Found, Got, Put, Tier
from ..wire.failed import Cut, Damaged, HandoffFailed, late
from ..wire.legs import SenderLegs
from ..wire.manifest import MOST_MANIFEST_BYTES
from ..wire.memory import copy_rows
from .contract import Answer, Receipt, Vector

__all__ = ["TierIncoming", "TierListener", "TierOutgoing"]

_BILL = Struct("<QQB7x")
_WORDS_BYTES = 4096
_WORDS_DIGEST = hashlib.sha256(b"kvferry-handoff").digest()
"""Stands for the namespace of what is said about a hand-off: a receiver of another namespace must read it
to say what differs."""
_FIRST_NAP, _LONGEST_NAP = 0.002, 0.05
T = TypeVar("T")


class _Shelf:
    """The values of one hand-off in a tier, by name."""

    def __init__(
        self, tier: Tier, handoff_id: str, namespace: bytes, secret: bytes, clock: Clock, ttl_seconds: float
    ) -> None:
        self.chunks = FramedTier(tier, namespace)
        self.words = FramedTier(tier, _WORDS_DIGEST)
        self._id = handoff_id
        self._secret = secret
        self._clock = clock
        self._ttl = ttl_seconds

    def key(self, what: str) -> bytes:
        """32 bytes."""
        name = hashlib.sha256(f"{self._id}/{what}".encode()).digest()
        return pool_key(self._secret, _WORDS_DIGEST, name)

    def chunk_key(self, index: int) -> bytes:
        """Of one chunk."""
        return self.key(f"chunk/{index}")

    def left(self, deadline: float, what: str) -> float:
        """Seconds to the deadline. Raises late."""
        seconds = deadline - self._clock.now()
        if seconds <= 0.0:
            raise late(what)
        return seconds

    def put(self, framed: FramedTier, key: bytes, value: memoryview, deadline: float, what: str) -> None:
        """Until it is there: a full tier is waited for."""
        nap = _FIRST_NAP
        while True:
            try:
                (status,) = framed.put(
                    [key], [value], self.left(deadline, f"room for {what}"), ttl_seconds=self._ttl
                )
            except StoreError as error:
                raise _lost(error, what) from error
            if status in (Put.STORED, Put.HELD):
                return
            if status != Put.FULL:
                raise Cut(f"tier {framed.name} did not take {what}")
            self._clock.sleep(nap)
            nap = min(_LONGEST_NAP, nap * 2)

    def get(self, framed: FramedTier, key: bytes, into: memoryview, deadline: float, what: str) -> None:
        """Wait until it is there, and read it, verified."""
        nap = _FIRST_NAP
        while True:
            (status,) = framed.get([key], [into], self.left(deadline, what))
            match status:
                case Got.OK:
                    return
                case Got.ABSENT:
                    self._clock.sleep(nap)
                    nap = min(_LONGEST_NAP, nap * 2)
                case Got.CORRUPT:
                    self.drop(framed, key)
                    raise Damaged(f"{what} fails its checksum")
                case Got.ALIEN:
                    raise HandoffFailed(Outcome.INCOMPATIBLE, f"{what} is of another namespace")
                case Got.LATE:
                    raise late(what)
                case _:
                    raise Cut(f"tier {framed.name} did not give {what}")

    def say(self, what: str, words: object, deadline: float) -> None:
        """Write a document over the one before it."""
        data = msgspec.json.encode(words)
        if len(data) > _WORDS_BYTES:
            raise HandoffFailed(Outcome.FAILED, f"{what} of {len(data)} bytes; {_WORDS_BYTES} are the most")
        self.drop(self.words, self.key(what))
        self.put(self.words, self.key(what), memoryview(data.ljust(_WORDS_BYTES)), deadline, what)

    def hear(self, what: str, type_: type[T], deadline: float) -> T:
        """Wait for a document."""
        data = bytearray(_WORDS_BYTES)
        self.get(self.words, self.key(what), memoryview(data), deadline, what)
        try:
            return msgspec.json.decode(data, type=type_)
        except msgspec.DecodeError as error:
            raise HandoffFailed(Outcome.INCOMPATIBLE, f"{what}: {error}") from error

    def drop(self, framed: FramedTier, *keys: bytes) -> None:
        """Remove what is there of these; a tier that does not answer keeps them until their life ends."""
        try:
            framed.drop(keys, 1.0, ghost=False)
        except StoreError:
            return


class TierOutgoing:
    """The sender's end. With `waits` it hears the receiver, else it leaves the chunks and goes."""

    wants_digest = False

    def __init__(
        self,
        tier: Tier,
        handoff_id: str,
        namespace: bytes,
        secret: bytes,
        clock: Clock,
        *,
        waits: bool = False,
        ttl_seconds: float = 600.0,
    ) -> None:
        self._shelf = _Shelf(tier, handoff_id, namespace, secret, clock, ttl_seconds)
        self._clock = clock
        self._waits = waits
        self._staging = memoryview(bytearray())

    def offer(self, manifest: bytes, chunks: int, deadline: float) -> Answer:
        shelf = self._shelf
        bill, paper = shelf.key("bill"), shelf.key("manifest")
        words = _BILL.pack(len(manifest), chunks, self._waits)
        try:
            there = self._held_chunks(chunks, deadline)
        except StoreError as error:
            raise _lost(error, "the tier") from error
        # A receiver that has read this very offer already goes on, and does not answer again.
        if not self._is_there(bill, words, deadline) or not self._is_there(paper, manifest, deadline):
            shelf.drop(shelf.words, bill, paper, *map(shelf.key, ("answer", "receipt", "trailer")))
            shelf.put(shelf.words, paper, memoryview(manifest), deadline, "the manifest")
            shelf.put(shelf.words, bill, memoryview(words), deadline, "the bill")
        if self._waits:
            return shelf.hear("answer", Answer, deadline)
        return Answer(take=True, reason="left_in_tier", from_chunk=there)

    def _is_there(self, key: bytes, value: bytes, deadline: float) -> bool:
        """Whether the tier holds exactly this; what is damaged or of another length does not count."""
        into = bytearray(len(value))
        framed = self._shelf.words
        (status,) = framed.get([key], [memoryview(into)], self._shelf.left(deadline, "the tier"))
        return status == Got.OK and into == value

    def chunk(self, index: int, payload: Vector, digest: bytes, deadline: float) -> None:
        value = payload[0] if len(payload) == 1 else self._gathered(payload)
        self._shelf.put(self._shelf.chunks, self._shelf.chunk_key(index), value, deadline, f"chunk {index}")

    def finish(self, legs: SenderLegs, deadline: float) -> Receipt:
        shelf = self._shelf
        shelf.say("trailer", legs, deadline)
        if not self._waits:
            return Receipt(installed=False, detail="left in the tier")
        receipt = shelf.hear("receipt", Receipt, deadline)
        shelf.drop(shelf.words, shelf.key("receipt"), shelf.key("answer"))
        return receipt

    def round_trip(self, payload: memoryview, deadline: float) -> float:
        """Into the tier and back out of it: both ways of the hand-off, by this process alone."""
        shelf = self._shelf
        key = shelf.key(f"probe/{secrets.token_hex(8)}")
        into = memoryview(bytearray(payload.nbytes))
        began = self._clock.now()
        shelf.put(shelf.words, key, payload, deadline, "a probe")
        shelf.get(shelf.words, key, into, deadline, "a probe")
        seconds = self._clock.now() - began
        shelf.drop(shelf.words, key)
        return seconds

    def close(self) -> None:
        pass

    def _held_chunks(self, chunks: int, deadline: float) -> int:
        """Leading chunks that an earlier attempt has left."""
        keys = [self._shelf.chunk_key(index) for index in range(chunks)]
        found = self._shelf.chunks.find(keys, self._shelf.left(deadline, "the tier"))
        return next((at for at, one in enumerate(found) if one != Found.HELD), chunks)

    def _gathered(self, payload: Vector) -> memoryview:
        size = sum(part.nbytes for part in payload)
        if self._staging.nbytes < size:
            self._staging = memoryview(bytearray(size))
        copy_rows(payload, self._staging)
        return self._staging[:size]


class TierIncoming:
    """The receiver's end."""

    def __init__(
        self,
        tier: Tier,
        handoff_id: str,
        namespace: bytes,
        secret: bytes,
        clock: Clock,
        *,
        holder: bytes,
        ttl_seconds: float = 600.0,
    ) -> None:
        self._shelf = _Shelf(tier, handoff_id, namespace, secret, clock, ttl_seconds)
        self._tier = tier
        self._holder = holder
        self._ttl = ttl_seconds
        self._leased = False
        self._heard = False
        """Whether the sender waits to hear of it."""
        self._staging = memoryview(bytearray())

    def take_offer(self, deadline: float) -> bytes:
        shelf = self._shelf
        name = shelf.key("lease")
        try:
            got = self._tier.lease([name], self._holder, self._ttl, shelf.left(deadline, "the tier"))
        except StoreError as error:
            raise _lost(error, "the tier") from error
        if got != b"\1":
            raise HandoffFailed(Outcome.FAILED, "another receiver has this hand-off")
        self._leased = True
        bill = bytearray(_BILL.size)
        shelf.get(shelf.words, shelf.key("bill"), memoryview(bill), deadline, "the offer")
        size, _, heard = _BILL.unpack(bill)
        self._heard = bool(heard)
        if size > MOST_MANIFEST_BYTES:
            raise Damaged(f"a manifest of {size} bytes; {MOST_MANIFEST_BYTES} are the most")
        manifest = bytearray(size)
        shelf.get(shelf.words, shelf.key("manifest"), memoryview(manifest), deadline, "the manifest")
        return bytes(manifest)

    def answer(self, answer: Answer, deadline: float) -> None:
        if self._heard:
            self._shelf.say("answer", answer, deadline)

    def chunk(self, index: int, into: Vector, deadline: float) -> None:
        key, what = self._shelf.chunk_key(index), f"chunk {index}"
        if len(into) == 1:
            self._shelf.get(self._shelf.chunks, key, into[0], deadline, what)
        else:
            size = sum(part.nbytes for part in into)
            if self._staging.nbytes < size:
                self._staging = memoryview(bytearray(size))
            self._shelf.get(self._shelf.chunks, key, self._staging[:size], deadline, what)
            copy_rows(into, self._staging[:size], back=True)
        self._shelf.drop(self._shelf.chunks, key)

    def trailer(self, deadline: float) -> SenderLegs:
        return self._shelf.hear("trailer", SenderLegs, deadline)

    def receipt(self, receipt: Receipt, deadline: float) -> None:
        shelf = self._shelf
        shelf.drop(shelf.words, *(shelf.key(what) for what in ("bill", "manifest", "trailer")))
        if self._heard:
            shelf.say("receipt", receipt, deadline)

    def close(self) -> None:
        if self._leased:
            self._leased = False
            try:
                self._tier.release([self._shelf.key("lease")], self._holder, 1.0)
            except StoreError:
                return


class TierListener:
    """Waits for one hand-off in a tier; the tier stays the caller's."""

    def __init__(self, tier: Tier, handoff_id: str, namespace: bytes, secret: bytes, clock: Clock) -> None:
        self._arguments = (tier, handoff_id, namespace, secret, clock)
        self._holder = secrets.token_bytes(16)

    def accept(self, deadline: float) -> TierIncoming:
        """An end that waits for the offer itself."""
        return TierIncoming(*self._arguments, holder=self._holder)

    def close(self) -> None:
        """Nothing is held here."""


def _lost(error: StoreError, what: str) -> HandoffFailed:
    return late(what) if isinstance(error, TierTimeout) else Cut(f"{what}: {error}")
