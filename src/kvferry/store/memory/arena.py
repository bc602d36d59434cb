"""One anonymous mapping divided into equal slots, and the copies in and out of it.

Owns addresses; refuses to know keys. A value takes as many slots as it needs, anywhere in the arena, so
that memory never fragments beyond the last slot of a value. The slot size is given, or learned from the
first value, so that the usual value (blocks of one namespace are all of one size) takes exactly one.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..tier import Vector

__all__ = ["Arena", "copy_parts"]

_ALIGNMENT = 64

Piece = NDArray[np.uint8]


class Arena:
    """`capacity_bytes` of memory in slots; not thread-safe, except for copies.

    Memory is committed by the kernel when a slot is first written (in huge pages where allowed).
    """

    def __init__(self, capacity_bytes: int, slot_bytes: int | None) -> None:
        self.capacity_bytes = capacity_bytes
        self.slot_bytes = 0
        self._free: list[int] = []
        self._memory: Piece | None = None
        if slot_bytes is not None:
            self._divide(slot_bytes)

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def slots_for(self, value_bytes: int) -> int | None:
        """Slots that a value takes, or None when it can never fit; the first value decides the size."""
        if value_bytes > self.capacity_bytes:
            return None
        if self._memory is None:
            self._divide(-(-value_bytes // _ALIGNMENT) * _ALIGNMENT)
        needed = max(1, -(-value_bytes // self.slot_bytes))
        return needed if needed * self.slot_bytes <= self.capacity_bytes else None

    def take(self, slots: int) -> list[int]:
        """Take free slots; the caller has made sure that there are as many."""
        taken = self._free[-slots:]
        del self._free[-slots:]
        return taken

    def give(self, slots: Sequence[int]) -> None:
        """Give slots back."""
        self._free.extend(slots)

    def pieces(self, slots: Sequence[int], value_bytes: int) -> list[Piece]:
        """The memory of a value in these slots, in order."""
        if self._memory is None:
            return []
        pieces = []
        for slot in slots:
            start = slot * self.slot_bytes
            size = min(self.slot_bytes, value_bytes)
            pieces.append(self._memory[start : start + size])
            value_bytes -= size
        return pieces

    def _divide(self, slot_bytes: int) -> None:
        # A value that just fits must fit, whatever the alignment.
        self.slot_bytes = max(1, min(slot_bytes, self.capacity_bytes))
        self._free = list(range(self.capacity_bytes // self.slot_bytes - 1, -1, -1))
        mapping = mmap.mmap(-1, self.capacity_bytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            mapping.madvise(mmap.MADV_HUGEPAGE)
        self._memory = np.frombuffer(mapping, dtype=np.uint8)


def copy_parts(into: Vector | Sequence[Piece], source: Vector | Sequence[Piece]) -> None:
    """Copy the bytes of `source` to `into`, whose parts may be cut elsewhere; without the GIL when large."""
    targets, sources = [_bytes_of(p) for p in into], [_bytes_of(p) for p in source]
    t = s = t_at = s_at = 0
    while t < len(targets) and s < len(sources):
        target, origin = targets[t], sources[s]
        size = min(len(target) - t_at, len(origin) - s_at)
        target[t_at : t_at + size] = origin[s_at : s_at + size]
        t_at, s_at = t_at + size, s_at + size
        if t_at == len(target):
            t, t_at = t + 1, 0
        if s_at == len(origin):
            s, s_at = s + 1, 0


def _bytes_of(part: memoryview | Piece) -> Piece:
    return part if isinstance(part, np.ndarray) else np.frombuffer(part, dtype=np.uint8)
