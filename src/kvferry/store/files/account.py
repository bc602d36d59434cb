"""The lock of a directory that processes share, and the count of what is in it.

Owns `used` and `blocks`, exact at every moment that nobody holds the lock, whoever was killed when:

- a value being written has its full size from the start, as a file in tmp/ that its writer holds an flock
  on; it is counted then, under the lock. A temporary file without an flock has no living writer;
- publishing adds a second name (a hard link) to the file. The bytes are counted once per file and are
  given back, under the lock, by whoever takes its last name away;
- the count is marked dirty while the lock is held. Who finds it dirty counts anew.

flock goes with its holder, on any host that shares the file system, so nothing here knows process ids.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from struct import Struct

from ...clock import Clock
from ...errors import ConfigError, TierTimeout, TierUnavailable
from .layout import Layout

__all__ = ["VALUE_PREFIX", "Account", "Count"]

VALUE_PREFIX = "v"
"""First letter of a temporary file that is a value; others are small and not counted."""

_RECORD = Struct("<8s7Q")
_MAGIC = b"KVcount2"
_MODE = 0o660


@dataclass(slots=True)
class Count:
    """What is in the directory; changed only while the lock is held."""

    used_bytes: int = 0
    blocks: int = 0
    evicted_blocks: int = 0
    evicted_unread_blocks: int = 0
    evicted_unread_bytes: int = 0
    capacity_bytes: int = 0
    """What the last process that had one was told; 0 when none had."""


class Account:
    """The lock and the count of a `Layout`."""

    def __init__(self, layout: Layout, clock: Clock) -> None:
        self._layout = layout
        self._clock = clock
        self._thread_lock = threading.Lock()
        self._path: Path = layout.account
        self._owner = os.getpid()
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        except OSError as error:
            raise ConfigError(
                f"{layout.root} cannot be used as a files tier: {error.strerror}; "
                "give a directory that can be written"
            ) from error

    @contextlib.contextmanager
    def hold(self, deadline: float) -> Iterator[Count]:
        """Hold the directory's lock; raises `TierTimeout` when it is not to be had by `deadline`.

        The count is written back at the end; an exception leaves it dirty, to be counted anew.
        """
        self._acquire(deadline)
        try:
            count = self._read()
            self._write(count, dirty=True)
            yield count
            self._write(count, dirty=False)
        except OSError as error:
            raise TierUnavailable(f"{self._layout.root}: {error}") from error
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._thread_lock.release()

    def peek(self) -> Count:
        """The count without the lock: exact unless somebody holds it right now."""
        fields = self._fields()
        return Count() if fields is None else Count(*fields[1:])

    def sweep(self, count: Count) -> None:
        """Remove what dead writers left; the lock is held."""
        for name in os.listdir(self._layout.tmp):
            path = f"{self._layout.tmp}/{name}"
            with contextlib.suppress(FileNotFoundError):
                if not name.startswith(VALUE_PREFIX):
                    # Small files are written under the lock, which we hold: this one's writer is dead.
                    # What cannot be removed (a folder, a file that NFS keeps open) is not ours.
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                    continue
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if _locked_by_another(fd):
                        continue
                    self.settle(count, fd, path)
                finally:
                    os.close(fd)

    def settle(self, count: Count, fd: int, path: str) -> bool:
        """Take a temporary name away, the lock held; whether its file lives on as a published value."""
        os.unlink(path)
        stat = os.fstat(fd)
        if stat.st_nlink:
            count.blocks += 1
            return True
        count.used_bytes -= stat.st_size
        return False

    def recount(self) -> Count:
        """Count what is there, the lock held (`hold` does so where the last holder was killed)."""
        fields = self._fields()
        # What cannot be counted anew is taken as it was written last.
        count = Count(0, 0, *fields[3:]) if fields else Count()
        for entry in self._layout.blocks():
            stat = entry.stat()
            count.used_bytes += stat.st_size
            # With two names, its writer has yet to count it, or the sweep below does.
            count.blocks += stat.st_nlink == 1
        with os.scandir(self._layout.tmp) as entries:
            for entry in entries:
                if entry.name.startswith(VALUE_PREFIX):
                    stat = entry.stat()
                    count.used_bytes += stat.st_size if stat.st_nlink == 1 else 0
        self.sweep(count)
        return count

    def close(self) -> None:
        """Close the lock's file; calling it twice is fine."""
        with self._thread_lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _acquire(self, deadline: float) -> None:
        if self._owner != os.getpid():
            # After a fork the file description is the parent's, and flock would not tell us apart.
            self._thread_lock = threading.Lock()
            self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            self._owner = os.getpid()
        if not self._thread_lock.acquire(timeout=max(0.0, deadline - self._clock.now())):
            raise TierTimeout(f"{self._layout.root}: the lock was not free in time")
        pause = 0.0002
        try:
            while not self._try_flock():
                if self._clock.now() >= deadline:
                    raise TierTimeout(f"{self._layout.root}: another process held the lock for too long")
                self._clock.sleep(pause)
                pause = min(2 * pause, 0.01)
        except BaseException:
            self._thread_lock.release()
            raise

    def _try_flock(self) -> bool:
        if self._fd < 0:
            raise TierUnavailable(f"{self._layout.root}: the tier is closed")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise TierUnavailable(f"{self._layout.root}: file locks do not work here: {error}") from error
        return True

    def _read(self) -> Count:
        fields = self._fields()
        if fields is None or fields[0]:
            return self.recount()
        return Count(*fields[1:])

    def _fields(self) -> tuple[int, ...] | None:
        """The dirty mark and the fields of `Count`; None for a new or damaged file."""
        raw = os.pread(self._fd, _RECORD.size, 0)
        if len(raw) < _RECORD.size:
            return None
        magic, *fields = _RECORD.unpack(raw)
        return tuple(fields) if magic == _MAGIC else None

    def _write(self, count: Count, *, dirty: bool) -> None:
        os.pwrite(self._fd, _RECORD.pack(_MAGIC, int(dirty), *(max(0, f) for f in astuple(count))), 0)


def _locked_by_another(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
