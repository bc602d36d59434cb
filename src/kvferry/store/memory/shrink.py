"""Giving memory back when it is short, and taking it again.

Owns the two-step retirement of slots: evicted and taken out of use under the tier's lock, given to the
kernel outside it. Refuses to know how much (`pressure`) and what is evicted (the tier).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from ...clock import Clock
from ...errors import TierUnavailable
from ...units import format_bytes
from .arena import Arena
from .pressure import Pressure
from .room import ReadRoom, Room

__all__ = ["Shrinker"]

log = logging.getLogger(__name__)

_EVICTED_AT_ONCE = 64
"""Values evicted in one turn of the lock."""


class Shrinker:
    """Keeps what an arena takes within what there is.

    `turn` is the tier's lock (raising `TierUnavailable` once it is closed), `evict` drops one value under it
    and says whether there was one to drop. `on_resized` hears of the bytes that the arena might take before
    and may take now, outside the lock.
    """

    def __init__(
        self,
        name: str,
        arena: Arena,
        turn: Callable[[], AbstractContextManager[object]],
        evict: Callable[[], bool],
        on_resized: Callable[[int, int], None] | None,
    ) -> None:
        self._name = name
        self._arena = arena
        self._turn = turn
        self._evict = evict
        self._on_resized = on_resized
        self._pressure = Pressure(arena.capacity_bytes)
        self._one_at_a_time = threading.Lock()

    def look(self, read_room: ReadRoom | None, clock: Clock) -> None:
        """Shrink when the limit is near; grow back a step when it is not."""
        arena = self._arena
        with self._one_at_a_time:
            room = read_room() if read_room else None
            try:
                with self._turn():
                    if not arena.slots:
                        return
                    before, committed = arena.allowed_bytes, arena.committed_bytes
                target = self._pressure.allowance(clock.now(), room, before, committed)
                # A step of growth is at least a slot.
                slots = -(-target // arena.slot_bytes) if target > before else target // arena.slot_bytes
                if target != before:
                    self._resize(min(slots, arena.slots))
            except TierUnavailable:
                return
            after = arena.allowed_bytes
        if after != before:
            self._say(before, after, room)

    def _resize(self, slots: int) -> None:
        arena = self._arena
        retired = -1
        while retired:
            with self._turn():
                surplus = max(0, arena.slots - arena.retired_slots - slots)
                for _ in range(_EVICTED_AT_ONCE):
                    if arena.free_slots >= surplus or not self._evict():
                        break
                # Nothing retired is the end: enough, or all that is left is being copied.
                retired = min(surplus, arena.free_slots)
                discarded = arena.retire(retired)
            # Nobody is lent a retired slot, so the kernel may take its time outside the lock.
            arena.discard(discarded)
        with self._turn():
            arena.restore(max(0, slots - (arena.slots - arena.retired_slots)))

    def _say(self, before: int, after: int, room: Room | None) -> None:
        log.log(
            logging.WARNING if after < before else logging.INFO,
            "tier %s may take %s now, not %s: %s",
            self._name,
            format_bytes(after),
            format_bytes(before),
            "no memory limit is known" if room is None else room,
        )
        if self._on_resized is not None:
            self._on_resized(before, after)
