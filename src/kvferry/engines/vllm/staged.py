"""Block memory between a tier and the engine's paged cache: what a load fills, what a store sends.

A tier writes to, and reads from, staging; blocks cross into the engine's pages one verified batch at a time,
under a fence. So a load that is given up can be answered at once: whatever still arrives stays in the
staging, and the pages may be computed into again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from .pages import Pages
from .pages_cuda import Marked

__all__ = ["LoadMemory", "Staging", "StoreMemory"]


class Staging:
    """Memory of the calling thread, touched once and used again for every batch."""

    def __init__(self) -> None:
        self._own = threading.local()

    def slots(self, count: int, block_bytes: int) -> list[memoryview]:
        """`count` adjacent buffers; the same bytes at every call by one thread."""
        arena = getattr(self._own, "arena", None)
        if arena is None or len(arena) < count * block_bytes:
            arena = self._own.arena = np.zeros(count * block_bytes, dtype=np.uint8)
        view = arena.data
        return [view[i * block_bytes : (i + 1) * block_bytes] for i in range(count)]


class LoadMemory:
    """Where the blocks of one group go: a `StagedMemory`. `block_ids` are the engine's, none of them 0."""

    def __init__(
        self,
        pages: Pages,
        group: int,
        block_ids: Sequence[int],
        staging: Staging,
        *,
        each: bool,
        after: Marked | None,
    ) -> None:
        self._pages, self._group, self._ids = pages, group, block_ids
        self._staging = staging
        self._each = each
        """Inject every block as it arrives, while it is in the processor's cache; else batch by batch."""
        self._after = after
        self._fence = threading.Lock()
        self._closed = False
        self._first = 0
        self._slots: list[memoryview] = []
        self._arrived = 0
        self._placed = 0

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        """Staging for the next batch. The one before has been placed by then."""
        self._slots = self._staging.slots(stop - start, self._pages.groups[self._group].block_bytes)
        self._first = start
        return self._slots

    def arrived(self, block: int) -> None:
        """`block` is whole in its slot; only an unbroken run from the front counts."""
        if block != self._arrived:
            return
        self._arrived = block + 1
        if self._each or self._arrived == self._first + len(self._slots):
            self._place()

    def close(self) -> int:
        """Nothing is written to the pages any more when this returns; how many leading blocks are there."""
        with self._fence:
            self._closed = True
            return self._placed

    def settle(self) -> int:
        """The tier is done: place what has arrived, in the loading thread, and close."""
        self._place()
        return self.close()

    def _place(self) -> None:
        with self._fence:
            if self._closed or self._placed >= self._arrived:
                return
            at, end = self._placed, self._arrived
            slots = self._slots[at - self._first : end - self._first]
            self._pages.inject(self._group, self._ids[at:end], slots, after=self._after)
            self._placed = end


class StoreMemory:
    """Where the blocks of one group come from; the engine keeps them unchanged meanwhile."""

    def __init__(
        self, pages: Pages, group: int, block_ids: Sequence[int], staging: Staging, *, after: Marked | None
    ) -> None:
        self._pages, self._group, self._ids = pages, group, block_ids
        self._staging = staging
        self._after = after

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        """Copies of the blocks, in staging of the calling thread."""
        slots = self._staging.slots(stop - start, self._pages.groups[self._group].block_bytes)
        self._pages.extract(self._group, self._ids[start:stop], slots, after=self._after)
        return slots
