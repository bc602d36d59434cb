"""A tier seen as blocks of one namespace: every value is a verified frame.

Owns the pairing of header and payload, the verification of what comes back and, with a codec, the way of a
block through a staging buffer. Refuses to know what is in the payload. A block that fails verification is
reported, never dropped here: the cache books it first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import overload

from xxhash import xxh3_128_digest

from ..errors import FormatError
from .arrival import Arrived, get_telling
from .codec import Codec
from .frame import HEADER_BYTES, Flaw, encode_into, flaw_of
from .frame import Codec as CodecId
from .hints import Hints, put_hinted
from .tier import Kind, Put, Tier, Usage, Vector

__all__ = ["FramedTier"]

log = logging.getLogger(__name__)

_SHARED_BLOCKS = 4
_SHARED_BYTES = 64 << 10
"""Batches of fewer or smaller blocks are not worth the hand-over to another thread."""
_WINDOW_BYTES = 64 << 20
"""Checksums are made for so much at a time: some milliseconds before the first byte of such a batch goes."""
_beside = ThreadPoolExecutor(1, "kvferry-checksum")


def _begin_anew() -> None:
    # A forked child has no such thread: what it hands over would be kept for ever, payloads and all.
    global _beside
    _beside = ThreadPoolExecutor(1, "kvferry-checksum")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


class FramedTier:
    """Blocks of one namespace in `tier`; block buffers only, headers are kept in memory of its own.

    `namespace_digest` is 32 bytes. `on_flaw(key, flaw)` hears of every block that failed verification.
    Blocks move as they are, without a copy, unless `codec` makes them smaller: then the payload, and what
    the checksum covers, is the encoded block. Every method may be called from any thread.
    """

    def __init__(
        self,
        tier: Tier,
        namespace_digest: bytes,
        *,
        on_flaw: Callable[[bytes, Flaw], None] | None = None,
        codec: Codec | None = None,
    ) -> None:
        if len(namespace_digest) != 32:
            raise FormatError(f"a namespace digest has 32 bytes, not {len(namespace_digest)}")
        self.tier = tier
        self.namespace_digest = namespace_digest
        self._on_flaw = on_flaw
        self._codec = None if codec is None or codec.id is CodecId.RAW else codec
        self._codec_id = CodecId.RAW if self._codec is None else self._codec.id

    @property
    def name(self) -> str:
        return self.tier.name

    @property
    def kind(self) -> Kind:
        return self.tier.kind

    @staticmethod
    def value_bytes(payload_bytes: int) -> int:
        """What a block of `payload_bytes` takes in the tier."""
        return payload_bytes + HEADER_BYTES

    def payload_bytes(self, block: memoryview) -> int:
        """What moves of `block`: its own bytes, or those of its encoded form."""
        return block.nbytes if self._codec is None else self._codec.payload_bytes

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        """One `Found` byte per key."""
        return self.tier.find(keys, timeout_seconds)

    def get(
        self,
        keys: Sequence[bytes],
        into: Sequence[memoryview],
        timeout_seconds: float,
        *,
        arrived: Arrived | None = None,
    ) -> bytes:
        """Read payloads straight into `into`; one `Got` byte per key, OK only for verified blocks.

        Buffers whose byte is not OK hold no promise. Each block is verified as it arrives, and decoded then;
        `arrived` hears of each that is sound, in this thread.
        """
        headers = _headers(len(keys))
        namespace = self.namespace_digest
        codec, codec_id = self._codec, self._codec_id
        payloads = into if codec is None else codec.slots_for(into)
        flaws: dict[int, Flaw] = {}

        def verify(i: int) -> None:
            flaw = flaw_of(headers[i], payloads[i], namespace, keys[i], codec_id)
            if flaw is not None:
                flaws[i] = flaw
                return
            if codec is not None:
                codec.decode_into(payloads[i], into[i])
            if arrived is not None:
                arrived(i)

        values = list(zip(headers, payloads, strict=True))
        statuses = get_telling(self.tier, keys, values, timeout_seconds, verify)
        if not flaws:
            return statuses
        verified = bytearray(statuses)
        for i, flaw in flaws.items():
            verified[i] = flaw.got
            self._report(keys[i], flaw)
        return bytes(verified)

    def put(
        self,
        keys: Sequence[bytes],
        payloads: Sequence[memoryview],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
        hints: Hints | None = None,
    ) -> bytes:
        """Write blocks that are not there yet; one `Put` byte per key.

        A codec encodes before the time-out begins. From the first block that it cannot hold on, all are
        FAILED: what comes behind a gap in a chain is of no use.
        """
        codec = self._codec
        if codec is None:
            frames = _Frames(self.namespace_digest, keys, payloads, CodecId.RAW)
            return put_hinted(self.tier, keys, frames, timeout_seconds, ttl_seconds=ttl_seconds, hints=hints)
        encoded = self._encoded(codec, keys, payloads)
        kept = keys[: len(encoded)]
        frames = _Frames(self.namespace_digest, kept, encoded, codec.id)
        if hints is not None:
            hints = hints.part(keys, 0, len(kept))
        statuses = put_hinted(self.tier, kept, frames, timeout_seconds, ttl_seconds=ttl_seconds, hints=hints)
        return statuses + bytes([Put.FAILED]) * (len(keys) - len(kept))

    def drop(self, keys: Sequence[bytes], timeout_seconds: float, *, ghost: bool = True) -> int:
        """Remove; how many were there."""
        return self.tier.drop(keys, timeout_seconds, ghost=ghost)

    def lease(
        self, names: Sequence[bytes], holder: bytes, ttl_seconds: float, timeout_seconds: float
    ) -> bytes:
        """Try to take each name; one byte per name, 1 where `holder` has it now."""
        return self.tier.lease(names, holder, ttl_seconds, timeout_seconds)

    def release(self, names: Sequence[bytes], holder: bytes, timeout_seconds: float) -> None:
        """Give back leases that `holder` has."""
        self.tier.release(names, holder, timeout_seconds)

    def read_note(self, name: str, timeout_seconds: float) -> bytes | None:
        """A small document beside the blocks."""
        return self.tier.read_note(name, timeout_seconds)

    def write_note(self, name: str, value: bytes, timeout_seconds: float, *, if_absent: bool = False) -> bool:
        """Write a note; False when `if_absent` and it was there."""
        return self.tier.write_note(name, value, timeout_seconds, if_absent=if_absent)

    def notes(self, prefix: str, timeout_seconds: float) -> list[str]:
        """Names of the notes that begin with `prefix`, sorted."""
        return self.tier.notes(prefix, timeout_seconds)

    def usage(self, timeout_seconds: float) -> Usage:
        """What the tier holds now, every namespace counted."""
        return self.tier.usage(timeout_seconds)

    def close(self) -> None:
        """Close the tier."""
        self.tier.close()

    def _encoded(self, codec: Codec, keys: Sequence[bytes], blocks: Sequence[memoryview]) -> list[memoryview]:
        """These blocks in this thread's staging buffers, up to the first that the codec cannot hold."""
        slots = codec.slots_for(blocks)
        for i, (key, block, slot) in enumerate(zip(keys, blocks, slots, strict=True)):
            try:
                codec.encode_into(block, slot)
            except FormatError as error:
                log.warning("tier %s: block %s: %s", self.tier.name, key.hex()[:16], error)
                return slots[:i]
        return slots

    def _report(self, key: bytes, flaw: Flaw) -> None:
        log.warning("tier %s: block %s: %s", self.tier.name, key.hex()[:16], flaw.value)
        if self._on_flaw is not None:
            self._on_flaw(key, flaw)


class _Frames(Sequence[Vector]):
    """Frames of a batch, encoded when a tier first takes them: a window at a time, by two threads.

    Checksums made between sends compete with the server for the machine's memory and, where there are two
    cores, for the second one: a window hashed at once before it is sent took two thirds of the time. The
    second thread is one for the whole process; where it is busy, the tier's own thread does all the work.
    """

    def __init__(
        self, namespace: bytes, keys: Sequence[bytes], payloads: Sequence[memoryview], codec: int
    ) -> None:
        if len(keys) != len(payloads):
            raise ValueError(f"{len(keys)} keys for {len(payloads)} payloads")
        self._namespace, self._keys, self._payloads, self._codec = namespace, keys, payloads, codec
        self._headers = _headers(len(keys))
        self._encoded = bytearray(len(keys))
        self._digests: list[bytes | None] = [None] * len(keys)

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, index: int) -> Vector: ...
    @overload
    def __getitem__(self, index: slice) -> list[Vector]: ...
    def __getitem__(self, index: int | slice) -> Vector | list[Vector]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        header, payload = self._headers[index], self._payloads[index]
        if not self._encoded[index]:
            if self._digests[index] is None:
                self._digest_window(index)
            encode_into(
                header, self._namespace, self._keys[index], payload, self._codec, digest=self._digests[index]
            )
            self._encoded[index] = 1
        return header, payload

    def _digest_window(self, first: int) -> None:
        size = self._payloads[first].nbytes
        window = range(first, min(len(self), first + max(1, _WINDOW_BYTES // max(1, size))))
        if len(window) < _SHARED_BLOCKS or size < _SHARED_BYTES:
            return
        turns = iter(window)  # both threads take from it: a block is hashed once
        try:
            other = _beside.submit(self._digest, turns)
        except RuntimeError:  # the interpreter ends
            self._digest(turns)
            return
        try:
            self._digest(turns)
        finally:
            # The payloads are the caller's again when a put returns, whatever it returns with.
            if not other.cancel():
                other.result()

    def _digest(self, turns: Iterator[int]) -> None:
        # Nothing but hashing: whatever else is done here is done under the interpreter's lock, and the
        # other thread waits for that.
        digests, payloads = self._digests, self._payloads
        for i in turns:
            digests[i] = xxh3_128_digest(payloads[i])


def _headers(count: int) -> list[memoryview]:
    """One allocation for the headers of a batch."""
    whole = memoryview(bytearray(count * HEADER_BYTES))
    return [whole[i : i + HEADER_BYTES] for i in range(0, count * HEADER_BYTES, HEADER_BYTES)]
