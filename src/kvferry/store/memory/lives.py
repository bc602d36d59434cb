"""When a stored value's life is over: at its bound, or when nobody reads it.

Owns the rule and the queue of ends. A read moves a value's end only in the value; the queue finds out when
the old end comes.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

__all__ = ["Life", "Lives"]

_NEVER = float("inf")


@dataclass(slots=True)
class Life:
    """Of one value; times are those of one monotonic clock."""

    published_at: float
    bound_at: float = _NEVER
    """It ends then, whoever reads it."""
    idle_seconds: float = _NEVER
    """It ends when it was not read for this long."""
    unread_seconds: float = _NEVER
    """It ends when its first read takes longer than this."""
    read_at: float | None = None
    queued_for: float = _NEVER
    """The end under which it is queued."""

    @property
    def ends_at(self) -> float:
        if self.read_at is None:
            return min(self.bound_at, self.published_at + min(self.idle_seconds, self.unread_seconds))
        return min(self.bound_at, self.read_at + self.idle_seconds)


class Lives:
    """Ends to come."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, int, bytes, Life]] = []
        self._serial = 0

    def add(self, key: bytes, life: Life, at: float | None = None) -> None:
        """Queue a life that may end, for its end or for an earlier look at it."""
        at = life.ends_at if at is None else at
        if at < _NEVER:
            life.queued_for = at
            self._serial += 1
            heapq.heappush(self._queue, (at, self._serial, key, life))

    def due(self, now: float) -> list[tuple[bytes, Life]]:
        """Take out the lives that are over now. Those of values that went otherwise may be among them."""
        over = []
        while self._queue and self._queue[0][0] <= now:
            at, _, key, life = heapq.heappop(self._queue)
            if life.queued_for != at:
                continue
            if life.ends_at <= now:
                over.append((key, life))
            else:
                self.add(key, life)
        return over
