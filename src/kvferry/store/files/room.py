"""Making room in a shared directory: values whose life is over first, then the least recently used.

Owns the choice of victims and what is done with one. Called with the directory's lock held.
"""

from __future__ import annotations

import contextlib
import os

from ..bloom import GhostFilter
from ..evicted import Evictions
from .account import Account, Count
from .layout import Layout
from .stamp import is_over, stamp_of

__all__ = ["Room"]

_SLACK = 20
"""A pass over the directory frees up to 1/20 of the capacity more than asked, so that passes are rare."""


class Room:
    """Takes values away from one directory."""

    def __init__(
        self,
        layout: Layout,
        account: Account,
        ghosts: GhostFilter,
        evictions: Evictions,
        unread_seconds: float,
    ) -> None:
        self._layout = layout
        self._account = account
        self._ghosts = ghosts
        self._evictions = evictions
        self.unread_seconds = unread_seconds

    def is_over(self, stat: os.stat_result, now_ns: int) -> bool:
        """Whether a value's life is over, though nobody has cleared it away yet."""
        return is_over(stat.st_atime_ns, stat.st_mtime_ns, now_ns, self.unread_seconds)

    def make(self, count: Count, needed_bytes: int, capacity_bytes: int, now_ns: int) -> None:
        """Evict until `needed_bytes` fit, as far as that is possible."""
        if count.used_bytes + needed_bytes <= capacity_bytes:
            return
        self._account.sweep(count)
        candidates = []
        for entry in self._layout.blocks():
            with contextlib.suppress(FileNotFoundError):
                stat = entry.stat()
                # A value with two names is being published this very moment.
                if stat.st_nlink == 1:
                    fresh = not self.is_over(stat, now_ns)
                    candidates.append((fresh, stat.st_atime_ns, entry.path, stat))
        candidates.sort(key=lambda candidate: candidate[:3])
        goal = min(capacity_bytes - needed_bytes, capacity_bytes - capacity_bytes // _SLACK)
        for fresh, _, path, stat in candidates:
            enough = count.used_bytes <= max(0, goal)
            if enough and fresh:
                break
            self._evict(count, path, stat)

    def over(self, now_ns: int) -> list[str]:
        """Paths of values whose life is over. Needs no lock: `clear` looks again."""
        found = []
        for entry in self._layout.blocks():
            with contextlib.suppress(FileNotFoundError):
                if self.is_over(entry.stat(), now_ns):
                    found.append(entry.path)
        return found

    def clear(self, count: Count, path: str, now_ns: int) -> bool:
        """Evict a value if it is there and its life is over; whether it was."""
        stat = _stat(path)
        if stat is None or not self.is_over(stat, now_ns):
            return False
        self._evict(count, path, stat)
        return True

    def drop(self, count: Count, path: str, now_ns: int) -> bool:
        """Take a value away because somebody said so; whether a live one was there."""
        stat = _stat(path)
        if stat is None:
            return False
        if self.is_over(stat, now_ns):
            self._evict(count, path, stat)
            return False
        _take_away(count, path, stat)
        return True

    def _evict(self, count: Count, path: str, stat: os.stat_result) -> None:
        key = bytes.fromhex(os.path.basename(path))
        read = stamp_of(stat.st_atime_ns).read
        # First remembered, then gone: a process killed in between has lied to nobody.
        self._ghosts.add([key])
        _take_away(count, path, stat)
        count.evicted_blocks += 1
        if not read:
            count.evicted_unread_blocks += 1
            count.evicted_unread_bytes += stat.st_size
        self._evictions.note(key, stat.st_size, read=read)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _take_away(count: Count, path: str, stat: os.stat_result) -> None:
    """Remove one name and give back its room."""
    os.unlink(path)
    if stat.st_nlink == 1:
        count.used_bytes -= stat.st_size
        count.blocks -= 1
    # Otherwise its writer, or the sweep after the writer's death, finds that only the temporary name is left.
