"""How other threads reach the engine's thread: items to take in, and a wake-up without any."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

__all__ = ["Mailbox"]

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Items in order. `put`, `wake` and `close` are for any thread, `take` for the one that owns it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._items: deque[T] = deque()
        self._awake = False
        self._closed: str | None = None

    @property
    def closed(self) -> str | None:
        """Why nothing is taken in any more; None while it is."""
        return self._closed

    def put(self, item: T) -> bool:
        """Hand over an item; False when the box is closed."""
        with self._condition:
            if self._closed is not None:
                return False
            self._items.append(item)
            self._condition.notify()
            return True

    def wake(self) -> None:
        """End the current wait, or else the next one."""
        with self._condition:
            self._awake = True
            self._condition.notify()

    def close(self, why: str) -> None:
        """Take in nothing more. What is inside can still be taken."""
        with self._condition:
            self._closed = self._closed or why
            self._condition.notify()

    def take(self, wait_seconds: float = 0.0) -> list[T]:
        """All items; with none, wait for one, for a wake-up or for the end, at most so long."""
        with self._condition:
            if wait_seconds > 0 and not (self._items or self._awake or self._closed):
                self._condition.wait(wait_seconds)
            self._awake = False
            items = list(self._items)
            self._items.clear()
            return items
