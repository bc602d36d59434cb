"""Step 5: the pool disappears in the middle of a load, and comes back.

The request that was loading and those after it must finish by recompute with the same answers; when the
pool is back (empty, where it was a server), publishing and loading must resume without anybody's help.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ...errors import EngineError
from .replicas import Asked, Replica
from .stage import Stage
from .workload import Question

__all__ = ["Loss", "lose_pool"]

_LOAD_SHARE = 0.4
"""The load that is cut off is to take this share of the recompute it replaces."""
_POLL_SECONDS = 0.05
_MOST_POLLS = 400
_MOST_TRIES = 12


@dataclass(slots=True)
class Loss:
    """What became of the requests around the loss."""

    cut_off: Asked
    after: list[Asked]
    resumed: Asked | None
    """The first hit from the pool after its return."""
    tries: int

    @property
    def recomputed(self) -> int:
        """Requests that could have loaded and finished without the pool."""
        return sum(a.record.fallback is not None for a in (self.cut_off, *self.after))


async def lose_pool(stage: Stage) -> Loss:
    """Take the pool away under a load of B, ask on both replicas, bring it back."""
    b = stage.b
    prefix = stage.prefixes[0]
    reference = next(
        a for a in reversed(stage.asked) if a.record.decision and a.record.decision.candidate_bytes
    )
    decision = reference.record.decision
    if decision is None:
        raise EngineError("no decision to take the length of a load from")
    rate = decision.candidate_bytes / (_LOAD_SHARE * decision.recompute_seconds)
    await stage.set_link(b, rate)
    loading = asyncio.create_task(stage.ask(b, Question(prefix, 0), "lost", forget=True))
    try:
        await _until_loading(b, loading)
        await asyncio.sleep(_LOAD_SHARE * decision.recompute_seconds / 3)
        await asyncio.to_thread(stage.pool.lose)
        stage.narrator.note(f"{stage.pool.what} is gone, in the middle of a load")
        cut_off = await loading
    finally:
        loading.cancel()

    async def go_on(replica: Replica, first: int) -> list[Asked]:
        return [
            await stage.ask(
                replica, Question(stage.prefixes[(first + i) % len(stage.prefixes)], 0), "lost", forget=True
            )
            for i in range(stage.plan.fallbacks)
        ]

    after_b, after_a = await stage.both(go_on(b, 1), go_on(stage.a, 1 + stage.plan.fallbacks))
    await asyncio.to_thread(stage.pool.restore)
    await stage.both(*(replica.switch(bytes_per_second=None) for replica in stage.replicas))
    stage.narrator.note(f"{stage.pool.what} is back")
    resumed, tries = None, 0
    while resumed is None and tries < _MOST_TRIES:
        tries += 1
        # A publishes again by itself: its prefixes have been asked for often enough.
        await stage.ask(stage.a, Question(prefix, 1), "return")
        hit = await stage.ask(b, Question(prefix, 1), "return", forget=True)
        resumed = hit if hit.record.path == "pool_hit" else None
    return Loss(cut_off, [*after_b, *after_a], resumed, tries)


async def _until_loading(replica: Replica, task: asyncio.Task[Asked]) -> None:
    for _ in range(_MOST_POLLS):
        if task.done():
            raise EngineError(f"replica {replica.name} finished before its load could be cut off")
        state = await replica.state()
        if state["state"]["loads_in_flight"] > 0:
            return
        await asyncio.sleep(_POLL_SECONDS)
    raise EngineError(f"replica {replica.name} began no load")
