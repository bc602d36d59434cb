"""What a tier asks of an eviction policy.

A policy orders keys and knows nothing of memory, locks and time. Its tier calls it under a lock, and tells
it of every key that comes, is used and goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["EvictionPolicy"]


class EvictionPolicy(Protocol):
    """An order of the stored keys. Each method is called under the tier's lock."""

    def insert(self, key: bytes, value_bytes: int) -> None:
        """A key that was not there came; its value takes `value_bytes`."""

    def touch(self, key: bytes) -> None:
        """A stored key was read."""

    def remove(self, key: bytes) -> None:
        """A stored key went, evicted or dropped."""

    def choose(self, pinned: Callable[[bytes], bool]) -> bytes | None:
        """The next key to evict among those not `pinned`, or None. The tier calls `remove` when it did."""
