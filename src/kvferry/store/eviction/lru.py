"""Least recently used: the key that was not used for the longest time goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["LRU"]


class LRU:
    """An `EvictionPolicy`: keys in the order of their last use."""

    def __init__(self) -> None:
        self._order: OrderedDict[bytes, None] = OrderedDict()

    def insert(self, key: bytes, value_bytes: int, worth_seconds: float | None, child: bytes | None) -> None:
        self._order[key] = None

    def touch(self, key: bytes, child: bytes | None) -> None:
        self._order.move_to_end(key)

    def remove(self, key: bytes) -> None:
        del self._order[key]

    def choose(self, kept: Callable[[bytes], bool]) -> bytes | None:
        return next((key for key in self._order if not kept(key)), None)
