"""Stores in flight: which blocks of a request are worth storing now, and how many stores may run.

A block is in at most one store of this engine; leases keep other replicas apart. Refuses to know whether a
request may be published at all: `gate/publication.py` says so, and it stands in `Request.publish_end`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..outcomes import Outcome
from .commands import Status, Store
from .requests import Request

__all__ = ["Publishing"]

_GONE = (Outcome.CORRUPT, Outcome.EVICTED, Outcome.INCOMPATIBLE)
# For each status byte, 1 where nobody holds the block or is said to be publishing it.
_MISSING = bytes(s < Status.TIER and s not in (Status.LEASED, Status.FAILED) for s in range(256))


class Publishing:
    """Blocks that are being stored, and slots for stores."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._storing: set[bytes] = set()
        self.in_flight = 0

    @property
    def free(self) -> bool:
        """Whether one more store may start."""
        return self.in_flight < self._most

    def begin(self, store: Store) -> None:
        """A slot, and these blocks, for this store."""
        self._storing.update(store.keys[store.start : store.stop])
        self.in_flight += 1

    def end(self, store: Store) -> None:
        """It has been answered, or given up."""
        self._storing.difference_update(store.keys[store.start : store.stop])
        self.in_flight -= 1

    def missing_runs(self, request: Request, end: int) -> Iterator[tuple[int, int]]:
        """Maximal runs of blocks before `end` that no tier holds and nobody here is storing, or has."""
        missing = bytearray(request.status[:end].translate(_MISSING))
        if request.failure is not None and request.failure[1] in _GONE and request.failure[0] < end:
            # One block was said to be held and proved not to be: it is missing after all.
            missing[request.failure[0]] = 1
        if self._storing:
            for index, key in enumerate(request.keys[:end]):
                if key in self._storing:
                    missing[index] = 0
        start = missing.find(1, request.published[-1][1] if request.published else 0)
        while start >= 0:
            stop = missing.find(0, start)
            yield start, stop if stop >= 0 else end
            start = missing.find(1, stop) if stop >= 0 else -1
