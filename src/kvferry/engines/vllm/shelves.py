"""One shelf of tiers for both halves of a connector, where they live in one process.

With one worker vLLM runs it in the scheduler's process: then host memory filled by the worker is found by
the scheduler's look-ups. With more, each process has a shelf of its own, and host memory is left out, since
no look-up could see it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...executors.shelf import Shelf

__all__ = ["Shared"]


class Shared:
    """Shelves by engine; the last to let go closes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shelves: dict[str, tuple[Shelf, int]] = {}

    def take(self, engine_id: str, opened: Callable[[], Shelf]) -> Shelf:
        """The engine's shelf, opened by whoever comes first."""
        with self._lock:
            shelf, users = self._shelves.get(engine_id, (None, 0))
            if shelf is None:
                shelf = opened()
            self._shelves[engine_id] = (shelf, users + 1)
            return shelf

    def leave(self, engine_id: str) -> None:
        """One user less."""
        with self._lock:
            shelf, users = self._shelves.pop(engine_id, (None, 0))
            if shelf is None:
                return
            if users > 1:
                self._shelves[engine_id] = (shelf, users - 1)
                return
        shelf.close()


SHELVES = Shared()
