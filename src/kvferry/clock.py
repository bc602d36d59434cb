"""Time as an object, so that every deadline can be tested without waiting."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "MonotonicClock", "VirtualClock"]


class Clock(Protocol):
    """A monotonic clock in seconds, and a wall clock for records."""

    def now(self) -> float:
        """Monotonic seconds; only differences mean anything."""

    def wall(self) -> float:
        """Seconds since the epoch; may jump, so never used for deadlines."""

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds` (zero or less returns at once)."""


class MonotonicClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


class VirtualClock:
    """A clock that moves only when told; `sleep` advances it."""

    def __init__(self, start: float = 0.0, wall: float = 1_700_000_000.0) -> None:
        self._now = start
        self._wall_offset = wall - start

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self._wall_offset

    def sleep(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Move forward; going back would break the promise of a monotonic clock."""
        if seconds < 0:
            raise ValueError(f"cannot move a monotonic clock back by {-seconds} s")
        self._now += seconds

    def jump_wall(self, seconds: float) -> None:
        """Let the wall clock jump, as an NTP step would; the monotonic clock is not moved."""
        self._wall_offset += seconds
