"""Chunks of vLLM's host memory, lent to loads and stores behind a fence.

Whatever moves a chunk touches staging of its own thread; chunks are copied under a lock, and only while they
are lent. So every load and store can be ended at once, also one whose thread hangs in a file system: its
slots in host memory may be used again, and nothing of it lands there or is published from there any more.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....errors import StoreError

__all__ = ["ChunkStaging", "Chunks", "HostMemory", "LoadChunks", "StoreChunks"]

Row = np.ndarray[Any, np.dtype[np.uint8]]


class HostMemory:
    """vLLM's primary tier: `(chunks, row bytes)`, C-contiguous."""

    def __init__(self, view: memoryview) -> None:
        shape = view.shape
        if shape is None or len(shape) != 2 or not view.c_contiguous:
            raise StoreError(f"host memory of shape {shape} is not rows of one chunk each")
        self.chunks, self.row_bytes = int(shape[0]), int(shape[1]) * view.itemsize
        self._rows: Row | None = np.frombuffer(view, dtype=np.uint8).reshape(self.chunks, self.row_bytes)

    def lend(self, chunk_ids: Sequence[int]) -> Chunks:
        """These chunks, until they are given back."""
        rows = self._rows
        if rows is None:
            raise StoreError("the engine has taken its host memory back")
        return Chunks([rows[int(i)] for i in chunk_ids], self.row_bytes)

    def release(self) -> None:
        """vLLM unmaps the memory next."""
        self._rows = None


class Chunks:
    """The chunks of one job, by their place in it."""

    def __init__(self, rows: list[Row], row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self._rows = rows
        self._filled = bytearray(len(rows))
        self._lock = threading.Lock()
        self._lent = True

    def fill(self, place: int, block: memoryview) -> None:
        """A verified block arrives; it is dropped when the chunks have been given back."""
        with self._lock:
            if self._lent:
                np.copyto(self._rows[place], np.frombuffer(block, dtype=np.uint8))
                self._filled[place] = 1

    def copy(self, places: Sequence[int], into: Sequence[memoryview]) -> None:
        """Copy chunks out. Raises StoreError when they have been given back."""
        for place, slot in zip(places, into, strict=True):
            with self._lock:
                if not self._lent:
                    raise StoreError("the store was given up")
                np.copyto(np.frombuffer(slot, dtype=np.uint8), self._rows[place])

    def give_back(self) -> bytes:
        """Nothing touches the chunks any more when this returns: for each, 1 where it was filled."""
        with self._lock:
            self._lent = False
            self._rows = []
            return bytes(self._filled)


class ChunkStaging:
    """Memory of the calling thread, used again for every batch."""

    def __init__(self) -> None:
        self._own = threading.local()

    def slots(self, count: int, row_bytes: int) -> list[memoryview]:
        """`count` buffers; the same bytes at every call by one thread."""
        arena = getattr(self._own, "arena", None)
        if arena is None or len(arena) < count * row_bytes:
            arena = self._own.arena = np.zeros(count * row_bytes, dtype=np.uint8)
        view = arena.data
        return [view[i * row_bytes : (i + 1) * row_bytes] for i in range(count)]


class LoadChunks:
    """Where a load goes: a `StagedMemory` over some chunks of a job, in the order of the load's keys."""

    def __init__(self, chunks: Chunks, places: Sequence[int], staging: ChunkStaging) -> None:
        self._chunks, self._places, self._staging = chunks, places, staging
        self._first = 0
        self._slots: list[memoryview] = []

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        """Staging for the next batch."""
        self._first = start
        self._slots = self._staging.slots(stop - start, self._chunks.row_bytes)
        return self._slots

    def arrived(self, block: int) -> None:
        """`block` is whole and verified."""
        self._chunks.fill(self._places[block], self._slots[block - self._first])


class StoreChunks:
    """Where a store comes from. `places[i]` is where block `first + i` of its keys lies in the job."""

    def __init__(self, chunks: Chunks, first: int, places: Sequence[int], staging: ChunkStaging) -> None:
        self._chunks, self._first, self._places, self._staging = chunks, first, places, staging

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        """Copies of the blocks. Raises StoreError when the store was given up."""
        slots = self._staging.slots(stop - start, self._chunks.row_bytes)
        self._chunks.copy(self._places[start - self._first : stop - self._first], slots)
        return slots
