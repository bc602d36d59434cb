"""The server's memory of what was published: a Bloom filter in two strings.

Owns their names, their filling and their change of generations. The bits are those of `..bloom`, so that
one word of each string answers for a key. The server evicts by itself and tells nobody: a key that is
absent now, but known here, was evicted or has expired.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..bloom import BITS_PER_KEY, bits_of, word_of
from .connection import Connection, ServerError, command
from .replies import integer

__all__ = ["Published"]

log = logging.getLogger(__name__)


class Published:
    """The filter under `root`; each of its generations takes `keys` additions, for 4 bytes a key together."""

    def __init__(self, root: bytes, keys: int) -> None:
        self.young, self.old = root + b"0", root + b"1"
        self._added = root + b"n"
        self._keys = keys
        self._words = max(1, keys * BITS_PER_KEY // 64)

    def words(self, keys: Sequence[bytes]) -> list[int]:
        """The index of each key's 64-bit word in either string."""
        return [word_of(key, self._words) for key in keys]

    def request(self, keys: Sequence[bytes]) -> bytes:
        """What `add` sends for these keys: it may be made before it is known that they are all there."""
        places = [
            # BITFIELD counts bits from the most significant one.
            b"%d" % (word * 64 + 63 - bit)
            for key, word in zip(keys, self.words(keys), strict=True)
            for bit in bits_of(key)
        ]
        # As `command` would write it, but a put waits for this: four arguments at a time.
        sets = [
            b"$3\r\nSET\r\n$2\r\nu1\r\n$%d\r\n%b\r\n$1\r\n1\r\n" % (len(place), place) for place in places
        ]
        head = b"*%d\r\n$8\r\nBITFIELD\r\n$%d\r\n%b\r\n" % (2 + 4 * len(sets), len(self.young), self.young)
        count = command(b"INCRBY", self._added, b"%d" % len(keys))
        return b"".join([head, *sets, count])

    def add(self, connection: Connection, keys: Sequence[bytes], request: bytes | None = None) -> None:
        """Remember keys; one round trip, and a second one when a generation is full."""
        if not keys:
            return
        connection.send([self.request(keys) if request is None else request])
        filled, total = connection.read_replies(2)
        if isinstance(filled, ServerError) or isinstance(total, ServerError):
            # A full server refuses this too. The blocks are stored; only their memory is lost.
            error = filled if isinstance(filled, ServerError) else total
            log.warning("published blocks will not be known once they are evicted: %s", error)
            return
        before = integer(total) - len(keys)
        # Additions are counted by the server, so exactly one of its clients crosses each boundary.
        if before // self._keys != integer(total) // self._keys:
            connection.send([command(b"RENAME", self.young, self.old)])
            connection.read_replies(1)
