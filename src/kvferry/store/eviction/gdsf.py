"""GreedyDual-Size-Frequency (Cherkasova 1998): the key that saves the fewest seconds per byte goes first.

priority = age + uses * saved seconds / bytes. The age is the priority of the last key that was evicted, so
that what was valuable long ago gives way in the end. A key whose publisher did not say what it saves counts
as the mean of those that did.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["GDSF"]

_USUAL_PER_BYTE = 1e-8
"""What a byte saves as long as nobody has said: ten milliseconds to the MiB."""


@dataclass(slots=True)
class _Standing:
    per_byte: float | None
    """Saved seconds per byte; None is unknown."""
    priority: float = 0.0
    uses: int = 0
    serial: int = 0
    """Of its entry in the heap; others there are of an earlier life, or out of date."""


class GDSF:
    """An `EvictionPolicy`: keys by what keeping them saves.

    A block is worth no less than the one that continues it, which cannot be used without it.
    """

    def __init__(self) -> None:
        self._keys: dict[bytes, _Standing] = {}
        self._heap: list[tuple[float, int, bytes]] = []
        self._serial = 0
        self._age = 0.0
        self._told, self._told_sum = 0, 0.0

    def insert(self, key: bytes, value_bytes: int, worth_seconds: float | None, child: bytes | None) -> None:
        per_byte = None if worth_seconds is None else worth_seconds / max(1, value_bytes)
        if per_byte is not None:
            self._told, self._told_sum = self._told + 1, self._told_sum + per_byte
        self._keys[key] = _Standing(per_byte)
        self.touch(key, child)
        self._push(key)

    def touch(self, key: bytes, child: bytes | None) -> None:
        # A priority only grows, so its entry in the heap is put right when it comes up.
        standing = self._keys[key]
        standing.uses += 1
        per_byte = standing.per_byte
        if per_byte is None:
            per_byte = self._told_sum / self._told if self._told else _USUAL_PER_BYTE
        standing.priority = max(standing.priority, self._age + standing.uses * per_byte)
        if child is not None:
            standing.priority = max(standing.priority, self._keys[child].priority)

    def remove(self, key: bytes) -> None:
        del self._keys[key]

    def choose(self, kept: Callable[[bytes], bool]) -> bytes | None:
        passed: list[bytes] = []
        chosen = None
        while self._heap and chosen is None:
            priority, serial, key = heapq.heappop(self._heap)
            standing = self._keys.get(key)
            if standing is None or standing.serial != serial:
                continue
            if standing.priority > priority:
                self._push(key)
                continue
            passed.append(key)
            if not kept(key):
                chosen = key
                self._age = max(self._age, priority)
        for key in passed:
            self._push(key)
        return chosen

    def _push(self, key: bytes) -> None:
        self._serial += 1
        standing = self._keys[key]
        standing.serial = self._serial
        heapq.heappush(self._heap, (standing.priority, self._serial, key))
