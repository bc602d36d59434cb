"""Names of our own for vLLM's blocks: keyed hashes of what they hold and what stands before.

    key = BLAKE2b(digest 16 bytes, key = secret, person = "kvferry-events-1",
                  data = parent's key (16 zero bytes for the first block) + token ids (32-bit, little-endian)
                         + msgpack of [adapter, extra keys])

vLLM's own hashes are opaque, may be cut to 64 bits and may be random in every process. Owns the chain; token
ids go in and never come out.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence

import msgspec

from ...errors import FormatError, InputError
from .events import Hash, Stored

__all__ = ["Rekeying"]

_PERSON = b"kvferry-events-1"
_ROOT = bytes(16)
_BYTES = 16


class Rekeying:
    """vLLM's hash to our key, for one engine. `secret` has 16 to 64 bytes."""

    def __init__(self, secret: bytes) -> None:
        if not 16 <= len(secret) <= 64:
            raise InputError(f"a secret has 16 to 64 bytes, not {len(secret)}")
        self._begun = hashlib.blake2b(key=secret, digest_size=_BYTES, person=_PERSON)
        self._known: dict[Hash, bytes] = {}
        self.orphans = 0
        """Events behind a block that was stored before the recording began."""

    def stored(self, event: Stored) -> tuple[bytes | None, list[bytes]]:
        """(key of the parent, keys of the blocks). Raises `FormatError` for token ids that are none."""
        parent = None if event.parent is None else self._parent(event.parent)
        try:
            tokens = array("I", event.token_ids)
        except (TypeError, OverflowError) as error:
            raise FormatError(f"BlockStored with token ids that are none: {error}") from error
        before = parent or _ROOT
        keys = []
        size = event.block_tokens
        for number, name in enumerate(event.hashes):
            hasher = self._begun.copy()
            hasher.update(before)
            hasher.update(_little(tokens[number * size : (number + 1) * size]))
            hasher.update(msgspec.msgpack.encode([event.adapter, _extra(event.extra_keys, number)]))
            before = hasher.digest()
            self._known[name] = before
            keys.append(before)
        return parent, keys

    def removed(self, hashes: Sequence[Hash]) -> list[bytes]:
        """Keys of evicted blocks; those that are not known are left out."""
        return [key for name in hashes if (key := self._known.get(name)) is not None]

    def session(self, name: str) -> str:
        """A name for a session that says nothing of its id: 16 hex digits."""
        hasher = self._begun.copy()
        hasher.update(b"session" + name.encode())
        return hasher.hexdigest()[:16]

    def _parent(self, name: Hash) -> bytes:
        found = self._known.get(name)
        if found is None:
            # Its tokens are not known. A name of its own keeps what follows together.
            self.orphans += 1
            hasher = self._begun.copy()
            hasher.update(b"orphan" + (name if isinstance(name, bytes) else str(name).encode()))
            found = self._known[name] = hasher.digest()
        return found


def _little(tokens: array[int]) -> bytes:
    if sys.byteorder == "big":
        tokens = tokens[:]
        tokens.byteswap()
    return tokens.tobytes()


def _extra(extra_keys: Sequence[object], number: int) -> object:
    return extra_keys[number] if number < len(extra_keys) else None
