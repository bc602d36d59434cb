"""A directory as a tier, shared by any number of processes.

Owns reading, writing and publishing of values as files. A value appears under its name whole, by a hard
link, or not at all; a process may be killed at any instant (`account` says how the rest is found and
cleared). Blocks are not synced to disk one by one: after a power failure a torn file may be left, which its
frame's checksum refuses.

A call is bound by its timeout between values. A file system that hangs inside a system call (a dead network
mount) hangs the calling thread with it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ...clock import Clock, MonotonicClock
from ...errors import ConfigError, TierTimeout, TierUnavailable
from ..arrival import Arrived
from ..evicted import Evictions
from ..hints import Hints
from ..tier import Entry, Found, Got, Kind, OnEvicted, Put, Usage, Vector
from .account import Account
from .drafts import MOST_PARTS, Drafts, after
from .ghosts import open_ghosts
from .layout import Layout
from .leases import SmallFiles
from .room import Room
from .stamp import NEVER, Stamp, expiry_of, idle_code_of, stamp_of

__all__ = ["FilesTier"]

log = logging.getLogger(__name__)

_BATCH = 64
"""Values written between two turns of the lock; each takes a file descriptor meanwhile."""
_SETTLE_SECONDS = 10.0


class FilesTier:
    """Blocks as files under `directory`, in at most `capacity_bytes` together (None: until the disk is full).

    Every process that shares the directory gives the same capacity. `ghost_keys` evicted keys (at least)
    stay recognisable, in a file of 4 bytes each; a stranger passes for evicted with a probability of at
    most about 1 %. The size of an existing file holds. `unread_seconds` is how long a block may wait for its
    first read. `on_evicted` hears of blocks that this process dropped. Without `create` a directory that is
    no tier yet is refused.

    Eviction is by last use: that is what the files carry, whichever process reads them.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        capacity_bytes: int | None = None,
        ttl_seconds: float | None = None,
        unread_seconds: float | None = None,
        ghost_keys: int = 1 << 19,
        on_evicted: OnEvicted | None = None,
        name: str = "files",
        kind: Kind = Kind.DISK,
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        if capacity_bytes is not None and capacity_bytes < 1:
            raise ConfigError(f"capacity of tier {name} must be at least 1 byte, not {capacity_bytes}")
        self.name = name
        self.kind = kind
        self._clock = clock or MonotonicClock()
        self._capacity = capacity_bytes
        self._ttl_seconds = ttl_seconds
        self._layout = Layout(Path(directory).absolute(), create=create)
        self._account = Account(self._layout, self._clock)
        self._small = SmallFiles(self._layout)
        with self._account.hold(self._clock.now() + _SETTLE_SECONDS) as count:
            self._account.sweep(count)
            self._small.clear_expired(self._now_ns())
            self._layout.check_links()
            try:
                self._ghosts = open_ghosts(self._layout.ghosts, ghost_keys)
            except OSError as error:
                raise self._unavailable(error) from error
            count.capacity_bytes = capacity_bytes or count.capacity_bytes
        self._evictions = Evictions(on_evicted)
        unread = math.inf if unread_seconds is None else unread_seconds
        self._room = Room(self._layout, self._account, self._ghosts, self._evictions, unread)
        self._drafts = Drafts(self._layout, self._account, self._room, capacity_bytes)

    def find(self, keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        now_ns = self._now_ns()
        found = bytearray(len(keys))
        absent = []
        for i, key in enumerate(keys):
            try:
                stat = os.stat(self._layout.block(key))
            except FileNotFoundError:
                absent.append(i)
                continue
            except OSError as error:
                raise self._unavailable(error) from error
            if self._room.is_over(stat, now_ns):
                # A file that nobody has cleared away yet.
                found[i] = Found.GHOST
                absent.append(i)
            else:
                found[i] = Found.HELD
        if absent:
            try:
                leased = self._small.leased(now_ns)
            except OSError as error:
                raise self._unavailable(error) from error
            for i, known in zip(absent, self._ghosts.knows([keys[i] for i in absent]), strict=True):
                if keys[i].hex() in leased:
                    found[i] = Found.LEASED
                elif known:
                    found[i] = Found.GHOST
        return bytes(found)

    def get(self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float) -> bytes:
        return self.get_telling(keys, into, timeout_seconds, _unheard)

    def get_telling(
        self, keys: Sequence[bytes], into: Sequence[Vector], timeout_seconds: float, arrived: Arrived
    ) -> bytes:
        clock = self._clock
        deadline = clock.now() + timeout_seconds
        now_ns = self._now_ns()
        statuses = bytearray([Got.LATE]) * len(keys)
        for i, (key, parts) in enumerate(zip(keys, into, strict=True)):
            if clock.now() > deadline:
                break
            statuses[i] = self._read(self._layout.block(key), parts, now_ns)
            if statuses[i] == Got.OK:
                arrived(i)
        return bytes(statuses)

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Vector],
        timeout_seconds: float,
        *,
        ttl_seconds: float | None = None,
        hints: Hints | None = None,
    ) -> bytes:
        hints = hints or Hints()
        deadline = self._clock.now() + timeout_seconds
        statuses = bytearray([Put.FAILED]) * len(keys)
        ttl = self._ttl_seconds if ttl_seconds is None else ttl_seconds
        now_ns = self._now_ns()
        expiry_ns = NEVER if ttl is None else expiry_of(now_ns, ttl)
        first, idle_code = self._position_behind(hints.after), idle_code_of(hints.idle_seconds)
        for start in range(0, len(keys), _BATCH):
            if self._clock.now() > deadline:
                break
            batch = range(start, min(start + _BATCH, len(keys)))
            try:
                drafts = self._drafts.begin(batch, keys, values, statuses, deadline, now_ns)
            except TierTimeout:
                if start == 0:
                    raise
                break
            try:
                for draft in drafts:
                    if self._clock.now() > deadline:
                        break
                    i = draft.index
                    stamp = Stamp(now_ns, first + i, idle_code)
                    statuses[i] = self._drafts.write(draft, values[i], keys[i], stamp, expiry_ns)
            finally:
                # Longer than the deadline if need be: else the room would be lost until a sweep.
                self._drafts.settle(drafts, self._clock.now() + _SETTLE_SECONDS)
                self._evictions.tell()
        return bytes(statuses)

    def drop(self, keys: Sequence[bytes], timeout_seconds: float, *, ghost: bool = True) -> int:
        if not keys:
            return 0
        with self._account.hold(self._clock.now() + timeout_seconds) as count:
            now_ns = self._now_ns()
            dropped = [key for key in keys if self._room.drop(count, self._layout.block(key), now_ns)]
            if ghost:
                self._ghosts.add(dropped)
        self._evictions.tell()
        return len(dropped)

    def sweep(self, timeout_seconds: float, *, unread_seconds: float | None = None) -> int:
        """Drop what has outlived its time now, not only when room is needed; how many blocks went.

        `unread_seconds` replaces the tier's own for this time.
        """
        deadline = self._clock.now() + timeout_seconds
        unread = self._room.unread_seconds if unread_seconds is None else unread_seconds
        room = Room(self._layout, self._account, self._ghosts, self._evictions, unread)
        now_ns = self._now_ns()
        try:
            over = room.over(now_ns)
        except OSError as error:
            raise self._unavailable(error) from error
        swept = 0
        for start in range(0, len(over), _BATCH):
            with self._account.hold(deadline) as count:
                swept += sum(room.clear(count, path, now_ns) for path in over[start : start + _BATCH])
            self._evictions.tell()
        return swept

    def lease(
        self, names: Sequence[bytes], holder: bytes, ttl_seconds: float, timeout_seconds: float
    ) -> bytes:
        taken = bytearray(len(names))
        with self._account.hold(self._clock.now() + timeout_seconds):
            now_ns = self._now_ns()
            for i, name in enumerate(names):
                if self._small.holder_of(name, now_ns) in (None, holder):
                    self._small.take_lease(name, holder, now_ns + int(ttl_seconds * 1e9))
                    taken[i] = 1
        return bytes(taken)

    def release(self, names: Sequence[bytes], holder: bytes, timeout_seconds: float) -> None:
        with self._account.hold(self._clock.now() + timeout_seconds):
            now_ns = self._now_ns()
            for name in names:
                if self._small.holder_of(name, now_ns) == holder:
                    self._small.end_lease(name)

    def read_note(self, name: str, timeout_seconds: float) -> bytes | None:
        try:
            return self._small.read_note(name)
        except OSError as error:
            raise self._unavailable(error) from error

    def write_note(self, name: str, value: bytes, timeout_seconds: float, *, if_absent: bool = False) -> bool:
        with self._account.hold(self._clock.now() + timeout_seconds):
            return self._small.write_note(name, value, if_absent=if_absent)

    def notes(self, prefix: str, timeout_seconds: float) -> list[str]:
        try:
            return sorted(name for name in self._layout.note_names() if name.startswith(prefix))
        except OSError as error:
            raise self._unavailable(error) from error

    def scan(self, timeout_seconds: float) -> Iterator[Entry]:
        now_ns = self._now_ns()
        for entry in self._blocks():
            with contextlib.suppress(FileNotFoundError):
                stat = entry.stat()
                if not self._room.is_over(stat, now_ns):
                    yield Entry(bytes.fromhex(entry.name), stat.st_size, stamp_of(stat.st_atime_ns).read)

    def usage(self, timeout_seconds: float) -> Usage:
        with self._account.hold(self._clock.now() + timeout_seconds) as count:
            return Usage(
                capacity_bytes=self._capacity or count.capacity_bytes or None,
                used_bytes=count.used_bytes,
                blocks=count.blocks,
                evicted_blocks=count.evicted_blocks,
                evicted_unread_blocks=count.evicted_unread_blocks,
                evicted_unread_bytes=count.evicted_unread_bytes,
                # Requests run in memory; room is promised to nobody; a file system keeps to itself what it
                # loses between files.
                active_decode_bytes=0,
                reserved_bytes=0,
            )

    def close(self) -> None:
        self._account.close()

    def _position_behind(self, after: bytes | None) -> int:
        """Where in its chain the block after this one is; 0 where that is not known."""
        if after is None:
            return 0
        try:
            return stamp_of(os.stat(self._layout.block(after)).st_atime_ns).position + 1
        except OSError:
            return 0

    def _read(self, path: str, parts: Vector, now_ns: int) -> Got:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return Got.ABSENT
        except OSError as error:
            log.warning("tier %s: %s", self.name, error)
            return Got.FAILED
        try:
            stat = os.fstat(fd)
            if self._room.is_over(stat, now_ns):
                return Got.ABSENT
            size = stat.st_size
            if size != sum(part.nbytes for part in parts):
                return Got.CORRUPT
            done = os.preadv(fd, parts[:MOST_PARTS], 0)
            while done < size:
                more = os.preadv(fd, after(parts, done)[:MOST_PARTS], done)
                if more == 0:
                    return Got.CORRUPT
                done += more
            with contextlib.suppress(PermissionError):
                # Files of another user can be read but not marked as used.
                used = replace(stamp_of(stat.st_atime_ns), used_ns=now_ns, read=True)
                os.utime(fd, ns=(used.atime_ns, stat.st_mtime_ns))
        except OSError as error:
            log.warning("tier %s: %s: %s", self.name, path, error)
            return Got.FAILED
        finally:
            os.close(fd)
        return Got.OK

    def _blocks(self) -> Iterator[os.DirEntry[str]]:
        try:
            yield from self._layout.blocks()
        except OSError as error:
            raise self._unavailable(error) from error

    def _now_ns(self) -> int:
        return int(self._clock.wall() * 1e9)

    def _unavailable(self, error: OSError) -> TierUnavailable:
        return TierUnavailable(f"tier {self.name}: {error}")


def _unheard(index: int) -> None:
    """For readers that wait for the whole batch."""
