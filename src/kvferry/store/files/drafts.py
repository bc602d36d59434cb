"""Writing values: a temporary file for each, published by a second name.

Owns the three steps. `begin` and `settle` hold the directory's lock; `write`, which takes the time, does
not. A process that dies between them leaves files that the next sweep finds without a living writer.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import TierUnavailable
from ..tier import Put, Vector
from .account import VALUE_PREFIX, Account, Count
from .layout import Layout
from .room import Room
from .stamp import Stamp

__all__ = ["MOST_PARTS", "Draft", "Drafts", "after"]

log = logging.getLogger(__name__)

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
MOST_PARTS = 1024
"""More in one call is an error (IOV_MAX)."""
_MODE = 0o660


@dataclass(slots=True)
class Draft:
    """A value being written: its place in the batch, and its temporary file."""

    index: int
    fd: int
    path: str


class Drafts:
    """Makes, fills and settles drafts in one directory."""

    def __init__(self, layout: Layout, account: Account, room: Room, capacity_bytes: int | None) -> None:
        self._layout = layout
        self._account = account
        self._room = room
        self._capacity = capacity_bytes
        self._identity = os.urandom(6).hex()
        self._serial = 0

    def begin(
        self,
        batch: range,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        statuses: bytearray,
        deadline: float,
        now_ns: int,
    ) -> list[Draft]:
        """What is there already, room for the rest, and a file of full size for each.

        Fills in HELD and FULL; the others have a draft.
        """
        drafts: list[Draft] = []
        try:
            with self._account.hold(deadline) as count:
                sizes = {}
                for i in batch:
                    if self._is_held(count, keys[i], now_ns):
                        statuses[i] = Put.HELD
                    else:
                        sizes[i] = sum(part.nbytes for part in values[i])
                capacity = self._capacity
                if capacity is not None:
                    needed = min(capacity, sum(sizes.values()))
                    self._room.make(count, needed, capacity, now_ns)
                for i, size in sizes.items():
                    if capacity is not None and count.used_bytes + size > capacity:
                        statuses[i] = Put.FULL
                        continue
                    draft = self._draft(i, size)
                    if draft is None:
                        statuses[i] = Put.FULL
                        continue
                    count.used_bytes += size
                    drafts.append(draft)
        except BaseException:
            # Without their flocks these files have no living writer, and the next sweep removes them.
            for draft in drafts:
                os.close(draft.fd)
            raise
        return drafts

    def write(self, draft: Draft, parts: Vector, key: bytes, stamp: Stamp, expiry_ns: int) -> Put:
        """Fill the file and give it the block's name."""
        try:
            size = sum(part.nbytes for part in parts)
            done = os.pwritev(draft.fd, parts[:MOST_PARTS], 0)
            while done < size:
                done += os.pwritev(draft.fd, after(parts, done)[:MOST_PARTS], done)
            os.utime(draft.fd, ns=(stamp.atime_ns, expiry_ns))
            _publish(draft.path, self._layout.block(key))
        except FileExistsError:
            return Put.HELD
        except OSError as error:
            if error.errno in _NO_ROOM:
                return Put.FULL
            log.warning("%s: %s", self._layout.root, error)
            return Put.FAILED
        return Put.STORED

    def settle(self, drafts: Sequence[Draft], deadline: float) -> None:
        """Take the temporary names away, and give back the room of what was not published."""
        if not drafts:
            return
        try:
            with self._account.hold(deadline) as count:
                for draft in drafts:
                    self._account.settle(count, draft.fd, draft.path)
        finally:
            for draft in drafts:
                os.close(draft.fd)

    def _is_held(self, count: Count, key: bytes, now_ns: int) -> bool:
        """Whether a live value is there; one whose life is over is cleared away."""
        path = self._layout.block(key)
        return os.path.exists(path) and not self._room.clear(count, path, now_ns)

    def _draft(self, index: int, size: int) -> Draft | None:
        """A file of `size` bytes with our flock on it, or None when the disk is full."""
        self._serial += 1
        path = f"{self._layout.tmp}/{VALUE_PREFIX}-{self._identity}-{os.getpid()}-{self._serial}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        except OSError as error:
            if error.errno in _NO_ROOM:
                return None
            raise TierUnavailable(f"{self._layout.root}: {error}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, size)
        except OSError as error:
            os.close(fd)
            os.unlink(path)
            if error.errno in _NO_ROOM:
                return None
            raise TierUnavailable(f"{self._layout.root}: {error}") from error
        return Draft(index, fd, path)


def after(parts: Vector, done: int) -> list[memoryview]:
    """What remains of `parts` behind their first `done` bytes."""
    rest = []
    for part in parts:
        if done >= part.nbytes:
            done -= part.nbytes
        else:
            rest.append(part[done:])
            done = 0
    return rest


def _publish(draft: str, block: str) -> None:
    try:
        os.link(draft, block)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(block), exist_ok=True)
        os.link(draft, block)
