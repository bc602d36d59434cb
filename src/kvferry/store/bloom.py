"""A Bloom filter of one 64-bit word per key, over any buffer, and a pair of them that forgets.

Owns the bit positions, so that filters in memory, in a shared file and in a server agree. Refuses to know
who shares the buffer: callers that share it for writing hold a lock of theirs.

All bits of a key lie in one word (a blocked filter, Putze, Sanders and Singler 2007): one memory access, or
one BITFIELD operation, tells. The price is a somewhat higher error rate than a classic filter's, stated by
`error_rate`. Keys are uniform hashes already, so positions are slices of the key itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from struct import Struct

from ..errors import FormatError

__all__ = [
    "BITS_PER_KEY",
    "HASHES",
    "PAIR_HEADER_BYTES",
    "GhostFilter",
    "bits_of",
    "error_rate",
    "mask_of",
    "pair_bytes",
    "word_of",
]

HASHES = 4
"""Bits set per key."""
BITS_PER_KEY = 16
"""Room planned for each key of a generation."""
_WORD = Struct("<Q")
_WORD_BYTES = 8

PAIR_HEADER_BYTES = 64
_MAGIC = b"KVghost1"
_HEADER = Struct("<8sQQQ")


def word_of(key: bytes, words: int) -> int:
    """Index of the key's 64-bit word among `words`."""
    return int.from_bytes(key[:8], "little") % words


def bits_of(key: bytes) -> tuple[int, ...]:
    """Positions (0..63) of the key's bits in its word; they may coincide."""
    bits = int.from_bytes(key[8:11], "little")
    return (bits & 63, bits >> 6 & 63, bits >> 12 & 63, bits >> 18 & 63)


def mask_of(key: bytes) -> int:
    """The key's bits as a mask."""
    mask = 0
    for bit in bits_of(key):
        mask |= 1 << bit
    return mask


def error_rate(keys_per_word: float) -> float:
    """Probability that a full filter claims a key it never saw (one generation; a pair has up to twice that).

    The number of keys in a word is Poisson; for `i` keys the expected share of set bits is
    1 - (63/64)^(4 i), and a stranger needs four set ones.
    """
    total, probability = 0.0, math.exp(-keys_per_word)
    for i in range(200):
        total += probability * (1 - (63 / 64) ** (HASHES * i)) ** HASHES
        probability *= keys_per_word / (i + 1)
    return total


def pair_bytes(keys: int) -> int:
    """Size of the buffer of a `GhostFilter` whose generations take `keys` each."""
    return PAIR_HEADER_BYTES + 2 * _WORD_BYTES * _words_for(keys)


class GhostFilter:
    """Two generations of a filter in one buffer: keys are added to the young one; when that is full, the
    old one is wiped and they change roles.

    So the last `keys` to `2 * keys` additions are remembered, in `pair_bytes(keys)` bytes (4 bytes a key),
    and a stranger is claimed with a probability of at most about 1 % (`error_rate(4)` twice). An empty
    (all zero) buffer is initialised; another one must have been made with the same `keys`.
    """

    def __init__(self, buffer: memoryview, keys: int) -> None:
        words = _words_for(keys)
        if buffer.nbytes != PAIR_HEADER_BYTES + 2 * _WORD_BYTES * words:
            raise FormatError(
                f"a ghost filter for {keys} keys has {pair_bytes(keys)} bytes, not {buffer.nbytes}"
            )
        self._buffer = buffer.cast("B")
        self._words = words
        self._keys = keys
        magic, its_words, _, _ = _HEADER.unpack_from(self._buffer)
        if magic == bytes(8):
            _HEADER.pack_into(self._buffer, 0, _MAGIC, words, 0, 0)
        elif magic != _MAGIC or its_words != words:
            raise FormatError("not a ghost filter, or one of another size: delete it to start anew")

    def add(self, keys: Iterable[bytes]) -> None:
        """Remember keys. Writers of a shared buffer hold a lock."""
        buffer, words = self._buffer, self._words
        _, _, young, count = _HEADER.unpack_from(buffer)
        for key in keys:
            if count >= self._keys:
                young, count = 1 - young, 0
                start = self._start(young)
                buffer[start : start + words * _WORD_BYTES] = bytes(words * _WORD_BYTES)
            at = self._start(young) + word_of(key, words) * _WORD_BYTES
            mask = mask_of(key)
            (word,) = _WORD.unpack_from(buffer, at)
            if word & mask != mask:
                _WORD.pack_into(buffer, at, word | mask)
                count += 1
        _HEADER.pack_into(buffer, 0, _MAGIC, words, young, count)

    def knows(self, keys: Sequence[bytes]) -> list[bool]:
        """Which keys were (or seem to have been) added."""
        buffer, words = self._buffer, self._words
        first, second = self._start(0), self._start(1)
        answers = []
        for key in keys:
            at, mask = word_of(key, words) * _WORD_BYTES, mask_of(key)
            answers.append(
                _WORD.unpack_from(buffer, first + at)[0] & mask == mask
                or _WORD.unpack_from(buffer, second + at)[0] & mask == mask
            )
        return answers

    def _start(self, generation: int) -> int:
        return PAIR_HEADER_BYTES + generation * self._words * _WORD_BYTES


def _words_for(keys: int) -> int:
    if keys < 1:
        raise FormatError(f"a ghost filter remembers at least one key, not {keys}")
    return max(1, -(-keys * BITS_PER_KEY // 64))
