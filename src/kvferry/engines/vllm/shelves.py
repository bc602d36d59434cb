"""What both halves of a connector share where they live in one process: the tiers, and who hears of them.

Where vLLM runs its one worker in the scheduler's process, host memory filled by the worker is found by the
scheduler's look-ups. Else each process has a shelf of its own: host memory is the workers', and the shelf of
the scheduler mirrors what they tell of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from ...cache.commands import Evicted
from ...clock import Clock
from ...config import Config
from ...executors.membership import Membership
from ...executors.shelf import Shelf, open_shelf
from ...store.backoff import State
from ...store.tier import Kind, OnEvicted
from ...telemetry.accounts import mourner, observer
from ...telemetry.metrics import Metrics, open_metrics
from ..ferry import Ferry
from .mirror import HostChanges, MirroredTier, ToldTier

__all__ = ["Fittings", "leave_fittings", "take_fittings"]


class Fittings:
    """The tiers of one process of an engine, its metrics, and what tiers tell to parts made after them.

    `mirror` takes the place of host memory on a scheduler's shelf; `changes` hears of a worker's.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        mirror: MirroredTier | None = None,
        changes: HostChanges | None = None,
    ) -> None:
        self.mirror, self.changes = mirror, changes
        self.metrics: Metrics = open_metrics(required=False)
        self.membership: Membership | None = None
        self.ferry: Ferry | None = None
        self.shelf: Shelf = open_shelf(
            config,
            clock,
            partial(observer, self.metrics),
            self._pool_state,
            self._mourner,
        )
        if mirror is not None:
            self.shelf.tiers.insert(0, mirror)
            self.shelf.kinds.insert(0, Kind.HOST)
        if changes is not None:
            self.shelf.tiers[0] = ToldTier(self.shelf.tiers[0], changes)

    def _mourner(self, kind: Kind) -> OnEvicted:
        mourn = mourner(self.metrics, self._evicted, kind)
        return self.changes.telling(mourn) if self.changes is not None and kind is Kind.HOST else mourn

    def _pool_state(self, state: State) -> None:
        if state is State.UP and self.membership is not None:
            self.membership.rejoin()

    def _evicted(self, evicted: Evicted) -> None:
        if self.ferry is not None:
            self.ferry.evicted(evicted)


_lock = threading.Lock()
_taken: dict[str, tuple[Fittings, int]] = {}


def take_fittings(engine_id: str, made: Callable[[], Fittings]) -> Fittings:
    """The engine's fittings in this process, made by whoever comes first."""
    with _lock:
        fittings, users = _taken.get(engine_id, (None, 0))
        if fittings is None:
            fittings = made()
        _taken[engine_id] = (fittings, users + 1)
        return fittings


def leave_fittings(engine_id: str) -> None:
    """One user less; the last closes the tiers."""
    with _lock:
        fittings, users = _taken.pop(engine_id, (None, 0))
        if fittings is not None and users > 1:
            _taken[engine_id] = (fittings, users - 1)
            return
    if fittings is not None:
        fittings.shelf.close()
