"""What both halves of a connector share where they live in one process: the tiers, and who hears of them.

With one worker vLLM runs it in the scheduler's process: then host memory filled by the worker is found by
the scheduler's look-ups. With more, each process has a shelf of its own, and host memory is left out, since
no look-up could see it.
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
from ...telemetry.accounts import mourner, observer
from ...telemetry.metrics import Metrics, open_metrics
from ..ferry import Ferry

__all__ = ["Fittings", "leave_fittings", "take_fittings"]


class Fittings:
    """The tiers of one process of an engine, its metrics, and what tiers tell to parts made after them."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.metrics: Metrics = open_metrics(required=False)
        self.membership: Membership | None = None
        self.ferry: Ferry | None = None
        self.shelf: Shelf = open_shelf(
            config,
            clock,
            partial(observer, self.metrics),
            self._pool_state,
            partial(mourner, self.metrics, self._evicted),
        )

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
