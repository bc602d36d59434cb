"""What a tier dropped by itself: counted, and told to whoever listens.

Owns the counts and the queue of what is still to be told, so that a tier can note under its lock and tell
outside it. Refuses to know why something went.
"""

from __future__ import annotations

import threading

from .tier import OnEvicted

__all__ = ["Evictions"]


class Evictions:
    """Dropped values, each with whether it was ever read. `note` and `tell` may be called from any thread."""

    def __init__(self, on_evicted: OnEvicted | None) -> None:
        self.blocks = self.unread_blocks = self.unread_bytes = 0
        self._on_evicted = on_evicted
        self._lock = threading.Lock()
        self._untold: list[tuple[bytes, bool, int]] = []

    def note(self, key: bytes, value_bytes: int, *, read: bool) -> None:
        """A value went."""
        with self._lock:
            self.blocks += 1
            if not read:
                self.unread_blocks += 1
                self.unread_bytes += value_bytes
            if self._on_evicted is not None:
                self._untold.append((key, read, value_bytes))

    def tell(self) -> None:
        """Tell what was noted since, in one call; the caller holds no lock."""
        if self._on_evicted is None or not self._untold:
            return
        with self._lock:
            told, self._untold = self._untold, []
        if told:
            unread_bytes = sum(size for _, read, size in told if not read)
            self._on_evicted([key for key, _, _ in told], bytes(read for _, read, _ in told), unread_bytes)
