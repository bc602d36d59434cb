"""One block of a prompt, and the pieces that it is kept in: one per rank and KV cache group.

The machine knows a block by one key. Where there are several pieces, each has a key in a namespace of its
own, and the block is held when all of them are. Owns that expansion, for look-ups and for drops.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...store.tier import Found, Tier
from ...store.wrapper import Wrapper

__all__ = ["PieceKeys", "PiecedTier"]

_HELD = int(Found.HELD)


class PieceKeys:
    """Keys of the other pieces of each block, for the last `most` blocks asked about (twice that at most)."""

    def __init__(self, most: int = 1 << 18) -> None:
        self._most = most
        self._young: dict[bytes, tuple[bytes, ...]] = {}
        self._old: dict[bytes, tuple[bytes, ...]] = {}

    def remember(self, keys: Sequence[bytes], others: Sequence[Sequence[bytes]]) -> None:
        """`others` has a list of keys, as long as `keys`, for each further piece."""
        self._young.update(zip(keys, zip(*others, strict=True), strict=True))
        if len(self._young) > self._most:
            self._old, self._young = self._young, {}

    def of(self, key: bytes) -> tuple[bytes, ...] | None:
        """The keys of the further pieces; None for a block that was forgotten."""
        found = self._young.get(key)
        return self._old.get(key) if found is None else found


class PiecedTier(Wrapper):
    """A tier whose `find` and `drop` speak of whole blocks. It is neither read nor written through this."""

    def __init__(self, tier: Tier, pieces: PieceKeys) -> None:
        super().__init__(tier)
        self._pieces = pieces

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        """One `Found` byte per block: the worst of its pieces. One round trip for all of them."""
        asked: list[bytes] = []
        spans: list[tuple[int, int]] = []
        for key in keys:
            start = len(asked)
            asked.append(key)
            # A mark, or a block forgotten meanwhile, has one: a load that then finds less falls short.
            asked.extend(self._pieces.of(key) or ())
            spans.append((start, len(asked)))
        found = self.tier.find(asked, timeout_seconds)
        return bytes(_worst(found[start:stop]) for start, stop in spans)

    def drop(self, keys: Sequence[bytes], timeout_seconds: float, *, ghost: bool = True) -> int:
        """Remove every piece; how many blocks that were."""
        whole = [(key, *(self._pieces.of(key) or ())) for key in keys]
        self.tier.drop([key for pieces in whole for key in pieces], timeout_seconds, ghost=ghost)
        return len(whole)


def _worst(found: bytes) -> int:
    return next((byte for byte in found if byte != _HELD), _HELD)
