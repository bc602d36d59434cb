"""How much memory a tier may take while others on the machine want it, too.

Owns the rule, as a pure function of figures that the tier gives it: shrink at once when the limit is near,
grow back slowly when it is not. Refuses to know where the figures come from and what is evicted.

The limit is near when less than `near` is free (a tenth of the limit, at most 1 GiB). Then the tier gives up
as much as makes `2 * near` free. It grows by a sixteenth of its capacity at most every ten seconds, and only
into memory that leaves `2 * near` free once it is written.
"""

from __future__ import annotations

from .room import Room

__all__ = ["GROW_SECONDS", "Pressure"]

GROW_SECONDS = 10.0
_NEAR_SHARE = 0.1
_NEAR_MOST = 1 << 30
_STEP_SHARE = 16


class Pressure:
    """The allowance of a tier of `capacity_bytes`."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._changed_at = float("-inf")

    def allowance(self, now: float, room: Room | None, allowed_bytes: int, committed_bytes: int) -> int:
        """What the tier may take from now on, in bytes.

        `allowed_bytes` is what it may take now, `committed_bytes` what the machine has lent it of that.
        """
        if room is None:
            near, spare = 0, self._capacity
        else:
            near = min(int(room.limit_bytes * _NEAR_SHARE), _NEAR_MOST)
            if room.free_bytes < near:
                self._changed_at = now
                return max(0, min(allowed_bytes, committed_bytes - (2 * near - room.free_bytes)))
            # What is allowed, but not written yet, will be missing one day.
            spare = room.free_bytes - 2 * near - max(0, allowed_bytes - committed_bytes)
        step = min(max(1, self._capacity // _STEP_SHARE), spare, self._capacity - allowed_bytes)
        if step <= 0 or now - self._changed_at < GROW_SECONDS:
            return allowed_bytes
        self._changed_at = now
        return allowed_bytes + step
