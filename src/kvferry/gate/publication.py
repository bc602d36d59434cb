"""What is worth publishing. Permission comes first, popularity second.

Permission: only blocks that end before the request's boundary, only data classes that may be shared. What
is left is published by policy: never (a read-only replica), declared (only requests that state a boundary),
second-touch (blocks that were asked for before), all.

Touches are counted in bounded memory: when the table is full the oldest untouched keys are forgotten,
which can only delay a publication.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["Publication", "Touches"]


class Touches:
    """How often each key was asked for, for the most recently asked `most` keys."""

    def __init__(self, most: int = 1_000_000) -> None:
        self._most = most
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def touch(self, keys: Sequence[bytes]) -> int:
        """Count one request for a chain; how many leading keys had been asked for before.

        A chain's keys are touched from the front, so those seen before are a prefix, unless the table
        has forgotten some: then the prefix is cut there.
        """
        seen = self._seen
        before = 0
        for key in keys:
            if key not in seen:
                break
            before += 1
        for key in keys:
            seen[key] = None
            seen.move_to_end(key)
        while len(seen) > self._most:
            seen.popitem(last=False)
        return before

    def __len__(self) -> int:
        return len(self._seen)


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

    def end_block(
        self, keys: Sequence[bytes], *, block_tokens: int, boundary_tokens: int | None, data_class: str
    ) -> int:
        """How many leading blocks of this request may and should be published; counts the touch."""
        if self.policy == "never" or data_class not in self._shareable:
            return 0
        permitted = len(keys)
        if boundary_tokens is not None:
            permitted = min(permitted, boundary_tokens // block_tokens)
        if self.policy == "all":
            return permitted
        if self.policy == "declared":
            return permitted if boundary_tokens is not None else 0
        return self._touches.touch(keys[:permitted])
