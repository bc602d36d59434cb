"""What a tier asks of an eviction policy.

A policy orders keys and knows nothing of memory, locks, time and threads. It is called under its tier's lock
(through `chains.Evictor`), and hears of every key that comes, is used and goes. A file per policy, the same
four functions in the same order; docs/eviction.md says how to add one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["EvictionPolicy"]


class EvictionPolicy(Protocol):
    """An order of the stored keys.

    Keys of a chain come and are used from its tail to its head: `child` is the key that continues this one
    and was told just before, None at the tail. A policy that keeps no block for less than its child has,
    seldom proposes one that must stay.
    """

    def insert(self, key: bytes, value_bytes: int, worth_seconds: float | None, child: bytes | None) -> None:
        """A key that was not there came: its size, and the prefill seconds it saves (None: unknown)."""

    def touch(self, key: bytes, child: bytes | None) -> None:
        """A stored key was read, or one that continues it came or was read."""

    def remove(self, key: bytes) -> None:
        """A stored key went, evicted or dropped."""

    def choose(self, kept: Callable[[bytes], bool]) -> bytes | None:
        """The next key to evict among those not `kept` (being copied, or continued by a stored block), or
        None. Whoever asked calls `remove` when it did.
        """
