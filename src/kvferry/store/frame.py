"""The header that travels in front of every block, and the verdict on one that was read back.

Owns the 128-byte layout, its encoding and its verification. Refuses to know tiers, sockets and files.

    offset  bytes  field (little-endian)
         0      4  magic, b"KVfr"
         4      2  format version, 1
         6      1  codec of the payload (`Codec`)
         7      1  zero
         8      8  payload length in bytes
        16     32  namespace digest
        48     32  pool key
        80     16  xxh3-128 of the payload (canonical, big-endian, digest)
        96     24  zero, reserved
       120      8  xxh3-64 of bytes 0..119 (canonical digest)

The header has a check of its own so that a damaged header is told apart from a sound header of another
namespace: the first is corrupt, the second belongs to somebody else and is left alone.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from struct import Struct

import msgspec
from xxhash import xxh3_64_digest, xxh3_128_digest

from ..errors import FormatError
from .tier import Got

__all__ = [
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "MAGIC",
    "Codec",
    "Flaw",
    "Header",
    "encode_into",
    "flaw_of",
    "parse",
    "verdict",
]

MAGIC = b"KVfr"
FORMAT_VERSION = 1
HEADER_BYTES = 128

_BODY = Struct("<4sHBxQ32s32s16s24x")
_CHECKED_BYTES = _BODY.size
_DIGEST_BYTES = 32


class Codec(IntEnum):
    """How the payload is encoded; `store/codec` has one class for each."""

    RAW = 0
    FP8 = 1
    INT8 = 2
    INT4 = 3


class Flaw(StrEnum):
    """What is wrong with a frame that was read back."""

    HEADER = "the header fails its own check"
    LENGTH = "the payload is not as long as the header says"
    PAYLOAD = "the payload fails its checksum"
    VERSION = "the frame has another format version"
    CODEC = "the payload is in a codec that the reader did not ask for"
    NAMESPACE = "the frame belongs to another namespace"
    KEY = "the frame belongs to another key"

    @property
    def got(self) -> Got:
        """A damaged frame is CORRUPT; a sound frame that is not ours is ALIEN."""
        return Got.CORRUPT if self in _DAMAGE else Got.ALIEN


_DAMAGE = frozenset({Flaw.HEADER, Flaw.LENGTH, Flaw.PAYLOAD})


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed header; `payload_digest` is not compared with any payload yet."""

    version: int
    codec: int
    payload_bytes: int
    namespace: bytes
    key: bytes
    payload_digest: bytes


def encode_into(
    header: memoryview,
    namespace: bytes,
    key: bytes,
    payload: memoryview,
    codec: int = Codec.RAW,
    *,
    digest: bytes | None = None,
) -> None:
    """Write the header of `payload` into `header` (128 writable bytes).

    `namespace` and `key` are 32 bytes each. `digest` is the payload's `xxh3_128_digest` where it is known.
    The checksum of a large payload is taken without the GIL.
    """
    if len(namespace) != _DIGEST_BYTES or len(key) != _DIGEST_BYTES:
        # struct would pad or cut silently, and the block could never be read back.
        raise FormatError(
            f"a frame takes a namespace and a key of 32 bytes, not {len(namespace)} and {len(key)}"
        )
    if digest is None:
        digest = xxh3_128_digest(payload)
    _BODY.pack_into(header, 0, MAGIC, FORMAT_VERSION, codec, payload.nbytes, namespace, key, digest)
    header[_CHECKED_BYTES:HEADER_BYTES] = xxh3_64_digest(header[:_CHECKED_BYTES])


def parse(header: memoryview | bytes) -> Header:
    """Read a header; raises `FormatError` when it is short, damaged or of another version."""
    if len(header) < HEADER_BYTES:
        raise FormatError(f"a frame header has {HEADER_BYTES} bytes, not {len(header)}")
    magic, version, codec, payload_bytes, namespace, key, digest = _BODY.unpack_from(header)
    if magic != MAGIC or xxh3_64_digest(header[:_CHECKED_BYTES]) != bytes(
        header[_CHECKED_BYTES:HEADER_BYTES]
    ):
        raise FormatError("not a frame of kvferry, or a damaged one")
    if version != FORMAT_VERSION:
        raise FormatError(f"frame format {version} is not the format {FORMAT_VERSION} of this release")
    return Header(
        version=version,
        codec=codec,
        payload_bytes=payload_bytes,
        namespace=namespace,
        key=key,
        payload_digest=digest,
    )


def flaw_of(
    header: memoryview, payload: memoryview, namespace: bytes, key: bytes, codec: int = Codec.RAW
) -> Flaw | None:
    """What is wrong with a frame read for `key` of `namespace`, or None when every byte is as written."""
    if xxh3_64_digest(header[:_CHECKED_BYTES]) != header[_CHECKED_BYTES:HEADER_BYTES]:
        return Flaw.HEADER
    magic, version, its_codec, payload_bytes, its_namespace, its_key, digest = _BODY.unpack_from(header)
    if magic != MAGIC:
        return Flaw.HEADER
    if version != FORMAT_VERSION:
        return Flaw.VERSION
    if its_namespace != namespace:
        return Flaw.NAMESPACE
    if its_key != key:
        return Flaw.KEY
    if its_codec != codec:
        return Flaw.CODEC
    if payload_bytes != payload.nbytes:
        return Flaw.LENGTH
    if digest != xxh3_128_digest(payload):
        return Flaw.PAYLOAD
    return None


def verdict(header: memoryview, payload: memoryview, namespace: bytes, key: bytes) -> Got:
    """`flaw_of` as the status that a tier's `get` reports."""
    flaw = flaw_of(header, payload, namespace, key)
    return Got.OK if flaw is None else flaw.got
