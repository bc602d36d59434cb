"""How many loads a replica may have in flight: a cap that a new replica has to earn.

It grows by a fixed amount with every load that arrived in time, up to the configured most, and is halved
by one that failed or came late, never below the start. So a cold replica does not flood the pool, and one
whose link has gone bad backs away (additive increase, multiplicative decrease).
"""

from __future__ import annotations

__all__ = ["LoadBudget"]


class LoadBudget:
    """Slots for parallel loads."""

    __slots__ = ("_cap", "growth", "in_flight", "most", "start")

    def __init__(self, *, start: int, most: int, growth: float) -> None:
        if not 1 <= start <= most:
            raise ValueError(f"a load budget needs 1 <= start <= most, not {start} and {most}")
        self.start = start
        self.most = most
        self.growth = growth
        self._cap = float(start)
        self.in_flight = 0

    @property
    def cap(self) -> int:
        """Loads that may be in flight now."""
        return int(self._cap)

    @property
    def free(self) -> bool:
        """Whether one more may start."""
        return self.in_flight < self.cap

    def take(self) -> None:
        """A load has been granted."""
        self.in_flight += 1

    def give_back(self, *, success: bool | None) -> None:
        """A load has ended: in time, badly, or (None) without having started."""
        self.in_flight -= 1
        if success:
            self._cap = min(float(self.most), self._cap + self.growth)
        elif success is False:
            self._cap = max(float(self.start), self._cap / 2)
