"""Loads in flight: which blocks are being loaded, by whom, and how many loads may run.

A block is in at most one load. Whoever else wants it waits for that load, and then finds it in the engine's
own cache. A claim begins with the decision, not with the transfer, so that two requests that are decided in
the same step do not load the same prefix twice; it ends with the load, or when it expires.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..gate.budget import LoadBudget
from .commands import TIER
from .requests import LOADING, Request

__all__ = ["Flights"]


class Flights:
    """Claims on blocks, and slots for loads."""

    def __init__(self, budget: LoadBudget) -> None:
        self.budget = budget
        self._claims: dict[str, frozenset[bytes]] = {}
        self._holders: dict[str, Request] = {}

    def take(self, request: Request, start: int, stop: int) -> None:
        """A slot, and the blocks `[start, stop)`, for this request."""
        request.claimed = (start, stop)
        self._claims[request.rid] = frozenset(request.keys[start:stop])
        self._holders[request.rid] = request
        self.budget.take()

    def release(self, request: Request, *, success: bool | None) -> bool:
        """Give both back; whether the request had any. `success` is None for a load that never began."""
        if self._holders.pop(request.rid, None) is None:
            return False
        del self._claims[request.rid]
        request.claimed = None
        self.budget.give_back(success=success)
        return True

    def first_claim(self, keys: Sequence[bytes], status: bytes, start: int) -> int | None:
        """The first held block from `start` that is being loaded by somebody; None where there is none."""
        first: int | None = None
        for claimed in self._claims.values():
            # A few loads at most, and mostly of other prefixes: one pass at C speed says so.
            if claimed.isdisjoint(keys):
                continue
            for index in range(start, len(status) if first is None else first):
                if status[index] < TIER:
                    break
                if keys[index] in claimed:
                    first = index
                    break
        return first

    def owner(self, key: bytes) -> Request:
        """Who is loading this block; KeyError where nobody is."""
        for rid, claimed in self._claims.items():
            if key in claimed:
                return self._holders[rid]
        raise KeyError(key)

    def seconds_until_slot(self, now: float) -> float:
        """0 while a slot is free; else until the first load in flight is expected to end."""
        if self.budget.free:
            return 0.0
        return max(0.001, min(map(self.expected_end, self._holders.values()), default=now) - now)

    @staticmethod
    def expected_end(owner: Request) -> float:
        """When the load that this request decided on is expected to end."""
        began = owner.load_started if owner.phase is LOADING else owner.chosen_at
        return began + (owner.decision.load_median_seconds if owner.decision is not None else 0.0)

    @property
    def claims(self) -> int:
        """How many blocks are claimed."""
        return sum(map(len, self._claims.values()))
