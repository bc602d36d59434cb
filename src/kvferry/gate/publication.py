"""What is worth publishing. Permission comes first, popularity second.

Permission: only blocks that end before the request's boundary, only data classes that may be shared. What
is left is published by policy: never (a read-only replica), declared (only requests that state a boundary),
second-touch (blocks that were asked for before), all.

Touches are counted in bounded memory: when the table is full the older generation of keys is forgotten,
which can only delay a publication.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["Publication", "Touches"]


class Touches:
    """Which keys were asked for, of the most recently asked `most` keys (at least half as many)."""

    def __init__(self, most: int = 1_000_000) -> None:
        self._half = max(1, most // 2)
        self._young: dict[bytes, None] = {}
        self._old: dict[bytes, None] = {}

    def touch(self, keys: Sequence[bytes]) -> int:
        """Count one request for a chain; how many leading keys had been asked for before.

        Whoever asks for a block asks for all before it, so the keys seen before are a prefix. It stays one:
        keys are forgotten a generation at a time, and a head is never older than what follows it.
        """
        young, old = self._young, self._old
        if keys and keys[-1] in young:
            return len(keys)
        before = bisect_left(
            range(len(keys)), True, key=lambda i: keys[i] not in young and keys[i] not in old
        )
        young.update(dict.fromkeys(keys))
        if len(young) > self._half:
            self._old, self._young = young, {}
        return before

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())


class Publication:
    """The publication policy of a replica."""

    def __init__(
        self, policy: str, shareable_data_classes: Sequence[str], most_keys: int = 1_000_000
    ) -> None:
        if policy not in ("never", "declared", "second-touch", "all"):
            raise ValueError(f"unknown publication policy {policy!r}")
        self.policy = policy
        self._shareable = frozenset(shareable_data_classes)
        self._touches = Touches(most_keys)

    def permitted(
        self, blocks: int, *, block_tokens: int, boundary_tokens: int | None, data_class: str
    ) -> int:
        """How many of a request's leading blocks may be published at all, popular or not."""
        if data_class not in self._shareable:
            return 0
        return blocks if boundary_tokens is None else min(blocks, boundary_tokens // block_tokens)

    def end_block(
        self, keys: Sequence[bytes], *, block_tokens: int, boundary_tokens: int | None, data_class: str
    ) -> int:
        """How many leading blocks of this request may and should be published; counts the touch."""
        permitted = 0
        if self.policy != "never":
            permitted = self.permitted(
                len(keys), block_tokens=block_tokens, boundary_tokens=boundary_tokens, data_class=data_class
            )
        if self.policy == "all" or not permitted:
            return permitted
        if self.policy == "declared":
            return permitted if boundary_tokens is not None else 0
        return self._touches.touch(keys[:permitted])
