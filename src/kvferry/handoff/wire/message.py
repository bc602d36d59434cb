"""The header of every message on a byte stream, and the checksum over its payload.

    offset  bytes  field (little-endian)
         0      4  magic, b"KVho"
         4      1  version, 1
         5      1  kind (`Kind`)
         6      2  zero
         8      8  index: of a chunk; 0 otherwise
        16      8  payload length in bytes
        24     16  xxh3-128 of the payload (canonical, big-endian, digest)
        40      8  xxh3-64 of bytes 0..39 (canonical digest)

Checksums tell damage, not forgery: a stream belongs on a private network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from xxhash import xxh3_64_digest, xxh3_128

from .failed import Damaged

__all__ = ["HEADER_BYTES", "Header", "Kind", "digest_of", "header_of", "parse_header"]

HEADER_BYTES = 48
MAGIC = b"KVho"
VERSION = 1

_BODY = Struct("<4sBB2xQQ16s")


class Kind(IntEnum):
    """What a message is."""

    PING = 1
    """Any payload; answered with PONG as soon as it was read."""
    PONG = 2
    OFFER = 3
    """A sealed manifest."""
    ANSWER = 4
    """JSON: take it from which chunk on, or not."""
    CHUNK = 5
    DONE = 6
    """JSON: what it took the sender."""
    RECEIPT = 7
    """JSON: what it took the receiver."""


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header."""

    kind: Kind
    index: int
    payload_bytes: int
    digest: bytes


def digest_of(parts: Sequence[memoryview]) -> bytes:
    """xxh3-128 over parts that follow each other: 16 bytes."""
    state = xxh3_128()
    for part in parts:
        state.update(part)
    return state.digest()


def header_of(kind: Kind, index: int, payload_bytes: int, digest: bytes) -> bytes:
    """The 48 bytes."""
    body = _BODY.pack(MAGIC, VERSION, kind, index, payload_bytes, digest)
    return body + xxh3_64_digest(body)


def parse_header(data: bytes | bytearray | memoryview) -> Header:
    """Raises Damaged for anything that is no header of this version."""
    body = bytes(data[: _BODY.size])
    magic, version, kind, index, payload_bytes, digest = _BODY.unpack(body)
    if magic != MAGIC or xxh3_64_digest(body) != bytes(data[_BODY.size : HEADER_BYTES]):
        raise Damaged("not a message of a hand-off, or a damaged one")
    if version != VERSION:
        raise Damaged(f"hand-off messages of version {version}; this release reads {VERSION}")
    try:
        return Header(Kind(kind), index, payload_bytes, digest)
    except ValueError as error:
        raise Damaged(f"no message is of kind {kind}") from error
