"""One anonymous mapping divided into equal slots, and the copies in and out of it.

Owns addresses; refuses to know keys. A value takes as many slots as it needs, anywhere in the arena, so
that memory never fragments beyond the last slot of a value. The slot size is given, or learned from the
first value, so that the usual value (blocks of one namespace are all of one size) takes exactly one.

Slots can be retired: their memory goes back to the machine, and they are not lent until they are restored.
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
    """`capacity_bytes` of memory in slots; not thread-safe, except for copies and `discard`.

    Memory is committed by the kernel when a slot is first written (in huge pages where allowed).
    """

    def __init__(self, capacity_bytes: int, slot_bytes: int | None) -> None:
        self.capacity_bytes = capacity_bytes
        self.slot_bytes = 0
        self.slots = 0
        """How many there are, retired ones included."""
        self._free: list[int] = []
        self._retired: list[int] = []
        self._touched = bytearray()
        self._mapping: mmap.mmap | None = None
        self._memory: Piece | None = None
        if slot_bytes is not None:
            self._divide(slot_bytes)

    @property
    def free_slots(self) -> int:
        return len(self._free)

    @property
    def retired_slots(self) -> int:
        return len(self._retired)

    @property
    def allowed_bytes(self) -> int:
        """What values may take together."""
        return (self.slots - len(self._retired)) * self.slot_bytes

    @property
    def committed_bytes(self) -> int:
        """Memory that the machine has lent: slots that were written since they were last discarded."""
        return self._touched.count(1) * self.slot_bytes

    def slots_for(self, value_bytes: int) -> int | None:
        """Slots that a value takes, or None when it can never fit; the first value decides the size."""
        if value_bytes > self.capacity_bytes:
            return None
        if self._memory is None:
            self._divide(-(-value_bytes // _ALIGNMENT) * _ALIGNMENT)
        needed = max(1, -(-value_bytes // self.slot_bytes))
        return needed if needed <= self.slots - len(self._retired) else None

    def take(self, slots: int) -> list[int]:
        """Take free slots; the caller has made sure that there are as many."""
        taken = self._free[-slots:]
        del self._free[-slots:]
        for slot in taken:
            self._touched[slot] = 1
        return taken

    def give(self, slots: Sequence[int]) -> None:
        """Give slots back."""
        self._free.extend(slots)

    def retire(self, slots: int) -> list[int]:
        """Lend up to as many free slots no more; those among them whose memory is to be discarded."""
        gone = self._free[:slots]
        del self._free[:slots]
        self._retired.extend(gone)
        return [slot for slot in gone if self._touched[slot]]

    def restore(self, slots: int) -> None:
        """Lend up to as many retired slots again, after all others."""
        back = self._retired[-slots:] if slots else []
        del self._retired[len(self._retired) - len(back) :]
        self._free[:0] = back

    def discard(self, slots: Sequence[int]) -> None:
        """Give the memory of retired slots back to the machine; what was in them is gone."""
        if self._mapping is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        for first, last in _runs(sorted(slots)):
            # Whole pages only: the others hold something of a neighbour.
            start = -(-first * self.slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            stop = (last + 1) * self.slot_bytes // mmap.PAGESIZE * mmap.PAGESIZE
            if start < stop:
                self._mapping.madvise(mmap.MADV_DONTNEED, start, stop - start)
            for slot in range(first, last + 1):
                self._touched[slot] = 0

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
        self.slots = self.capacity_bytes // self.slot_bytes
        self._free = list(range(self.slots - 1, -1, -1))
        self._touched = bytearray(self.slots)
        # Private: memory that is shared with nobody can be given back, and may come in huge pages.
        self._mapping = mmap.mmap(-1, self.capacity_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self._memory = np.frombuffer(self._mapping, dtype=np.uint8)


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


def _runs(slots: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring slots as (first, last)."""
    runs: list[tuple[int, int]] = []
    for slot in slots:
        if runs and runs[-1][1] == slot - 1:
            runs[-1] = (runs[-1][0], slot)
        else:
            runs.append((slot, slot))
    return runs


def _bytes_of(part: memoryview | Piece) -> Piece:
    return part if isinstance(part, np.ndarray) else np.frombuffer(part, dtype=np.uint8)
