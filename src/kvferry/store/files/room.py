"""Making room in a shared directory: expired values first, then the least recently used.

Owns the choice of victims. Called with the directory's lock held.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from .account import Account, Count
from .layout import Layout, expired

__all__ = ["clear_expired", "make_room", "remove"]

_SLACK = 20
"""A pass over the directory frees up to 1/20 of the capacity more than asked, so that passes are rare."""


def make_room(
    layout: Layout,
    account: Account,
    count: Count,
    needed_bytes: int,
    capacity_bytes: int,
    now_ns: int,
    mourn: Callable[[list[bytes]], None],
) -> None:
    """Evict until `needed_bytes` fit, as far as that is possible. `mourn` hears the evicted keys first."""
    if count.used_bytes + needed_bytes <= capacity_bytes:
        return
    account.sweep(count)
    candidates = []
    for folder in layout.block_folders():
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat()
                    # A value with two names is being published this very moment.
                    if stat.st_nlink == 1:
                        fresh = not expired(stat.st_mtime_ns, now_ns)
                        candidates.append((fresh, stat.st_atime_ns, stat.st_size, entry.path))
    candidates.sort()
    goal = min(capacity_bytes - needed_bytes, capacity_bytes - capacity_bytes // _SLACK)
    for fresh, _, size, path in candidates:
        enough = count.used_bytes <= max(0, goal)
        if enough and fresh:
            break
        mourn([bytes.fromhex(os.path.basename(path))])
        os.unlink(path)
        count.used_bytes -= size
        count.blocks -= 1
        count.evicted_blocks += 1


def remove(count: Count, path: str, now_ns: int) -> bool:
    """Take a value's name away, the lock held; whether a live value was there."""
    mtime_ns = _take_away(count, path)
    return mtime_ns is not None and not expired(mtime_ns, now_ns)


def clear_expired(count: Count, path: str) -> bool:
    """Take away a value that the caller found expired, the lock held; whether it was still there."""
    return _take_away(count, path) is not None


def _take_away(count: Count, path: str) -> int | None:
    """Remove one name and give back its room; the file's expiry, or None when it was not there."""
    try:
        stat = os.stat(path)
        os.unlink(path)
    except FileNotFoundError:
        return None
    if stat.st_nlink == 1:
        count.used_bytes -= stat.st_size
        count.blocks -= 1
    # Otherwise its writer, or the sweep after the writer's death, finds that only the temporary name is left.
    return stat.st_mtime_ns
