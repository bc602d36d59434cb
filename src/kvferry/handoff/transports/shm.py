"""A byte stream through shared memory on one host: two rings in one segment that the receiver owns.

    offset  bytes  word (little-endian, 8 bytes each)
         0      8  magic, b"KVshm" and the version
         8      8  bytes of the ring from sender to receiver
        16      8  bytes of the ring back
        24      8  epoch: how many senders have come
        32      8  the epoch that the receiver has accepted
        64      8  bytes ever written to the first ring     128  and read from it
       192      8  bytes ever written to the second ring    256  and read from it
      4096         the first ring, then the second

Who is there is told by locks on the file, byte 0 the receiver's and byte 1 the sender's: the kernel gives
them up when a process dies, however it dies. Only the receiver's own copy of the bytes is ever verified and
used, so whatever a late sender still writes is not attended to; a sender of an earlier epoch is cut. The
segment goes with the receiver: at `close`, by the resource tracker when it is killed, and by the next
receiver of this host where even the tracker was. Linux only: other systems have no file to lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import struct
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np

from ...clock import Clock
from ...errors import ConfigError
from ..wire.failed import Cut, late
from .contract import Vector
from .stream import StreamIncoming, StreamOutgoing

__all__ = ["DEFAULT_RING_BYTES", "SharedListener", "SharedStream", "dial_shared"]

DEFAULT_RING_BYTES = 8 << 20

_FOLDER = Path("/dev/shm")
_PREFIX = "kvferry-handoff-"
_MAGIC = int.from_bytes(b"KVshm\0\0\1", "little")
_BACK_BYTES = 256 << 10
_DATA = 4096
_PIECE_BYTES = 256 << 10
"""Bytes become visible in pieces, so that one side copies in while the other copies out."""
_RECEIVER, _SENDER = 0, 1
_EPOCH, _ACCEPTED = 3, 4
_LOCK = struct.Struct("@hhqqi4x")
_LOOK_SECONDS = 0.02
_LONGEST_NAP = 0.001
_ABANDONED_SECONDS = 60.0

_fence = threading.Lock()
"""Taking a lock orders memory: what was written before it is seen by who reads what is written after."""


class _Segment:
    """One mapping of a segment."""

    def __init__(self, name: str, buffer: Any, descriptor: int) -> None:
        self.name = name
        self.descriptor = descriptor
        self._view = memoryview(buffer).cast("B")
        self.words = np.frombuffer(self._view[:_DATA], dtype="<u8")
        self._closed = False

    def word(self, index: int) -> int:
        """One word. Nobody else keeps the array, or the mapping could not be closed."""
        return int(self.words[index])

    def rings(self) -> tuple[_Ring, _Ring]:
        """From sender to receiver, and back. Raises Cut for sizes that the segment does not have."""
        forth, back = self.word(1), self.word(2)
        if not forth or not back or _DATA + forth + back > self._view.nbytes:
            raise Cut(f"shm://{self.name}: the segment is damaged")
        return (
            _Ring(self.words, 8, 16, self._view[_DATA : _DATA + forth]),
            _Ring(self.words, 24, 32, self._view[_DATA + forth : _DATA + forth + back]),
        )

    def lock(self, byte: int) -> bool:
        """Take the lock of one side; False where somebody else has it."""
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, 0, byte, 1, 0))
        except BlockingIOError:
            return False
        return True

    def unlock(self, byte: int) -> None:
        """Give it up."""
        fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_UNLCK, 0, byte, 1, 0))

    def is_there(self, byte: int) -> bool:
        """Whether the other side lives."""
        return _is_locked(self.descriptor, byte)

    def close(self) -> None:
        """Unmap, and let the locks go."""
        if not self._closed:
            self._closed = True
            del self.words
            self._view.release()
            os.close(self.descriptor)


class _Ring:
    """Bytes in one direction: the writer moves `head`, the reader `tail`, both only up."""

    def __init__(self, words: Any, head: int, tail: int, data: memoryview) -> None:
        self._words, self._head, self._tail = words, head, tail
        self._data = data
        self._size = data.nbytes

    def write(self, part: memoryview, wait: Callable[[], None]) -> None:
        """All of `part`; `wait` is called while there is no room."""
        head, at = int(self._words[self._head]), 0
        while at < part.nbytes:
            free = self._size - (head - int(self._words[self._tail]))
            if free <= 0:
                wait()
                continue
            place = head % self._size
            count = min(free, part.nbytes - at, self._size - place, _PIECE_BYTES)
            self._data[place : place + count] = part[at : at + count]
            with _fence:
                head, at = head + count, at + count
            self._words[self._head] = head

    def read(self, part: memoryview, wait: Callable[[], None]) -> None:
        """Fill `part`; `wait` is called while there is nothing."""
        tail, at = int(self._words[self._tail]), 0
        while at < part.nbytes:
            there = int(self._words[self._head]) - tail
            if there <= 0:
                wait()
                continue
            with _fence:
                place = tail % self._size
            count = min(there, part.nbytes - at, self._size - place, _PIECE_BYTES)
            part[at : at + count] = self._data[place : place + count]
            with _fence:
                tail, at = tail + count, at + count
            self._words[self._tail] = tail

    def clear(self) -> None:
        """Empty; neither side may be at work."""
        self._words[self._head] = self._words[self._tail] = 0

    def close(self) -> None:
        """Let the mapping go."""
        self._data.release()
        self._words = None


class SharedStream:
    """One side of an accepted connection."""

    def __init__(self, segment: _Segment, epoch: int, *, sends: bool, clock: Clock, owns: bool) -> None:
        forth, back = segment.rings()
        self._out, self._in = (forth, back) if sends else (back, forth)
        self._segment = segment
        self._epoch = epoch
        self._other = _RECEIVER if sends else _SENDER
        self._clock = clock
        self._owns = owns
        self._closed = False

    def send(self, parts: Vector, deadline: float) -> None:
        wait = self._waiter(deadline, "the other side to read")
        for part in parts:
            self._out.write(part, wait)

    def fill(self, parts: Vector, deadline: float) -> None:
        wait = self._waiter(deadline, "bytes of the other side")
        for part in parts:
            self._in.read(part, wait)

    def close(self) -> None:
        """The sender's locks go with it; the segment stays its receiver's."""
        if self._closed:
            return
        self._closed = True
        self._out.close()
        self._in.close()
        if self._owns:
            self._segment.close()

    def _waiter(self, deadline: float, what: str) -> Callable[[], None]:
        """A wait that begins with looking again at once, and soon naps."""
        if self._closed:
            raise Cut("the connection is closed")
        turns, looked = 0, self._clock.now()

        def wait() -> None:
            nonlocal turns, looked
            turns += 1
            if turns <= 64:
                time.sleep(0)
                return
            time.sleep(min(_LONGEST_NAP, 2e-5 * (turns - 64)))
            now = self._clock.now()
            if now >= deadline:
                raise late(what)
            if now - looked >= _LOOK_SECONDS:
                turns, looked = 65, now
                if self._segment.word(_EPOCH) != self._epoch:
                    raise Cut("another sender has come")
                if not self._segment.is_there(self._other):
                    raise Cut("the other side is gone")

        return wait


class SharedListener:
    """The receiver's segment. `name` is what a sender has to be told."""

    def __init__(
        self, clock: Clock, *, ring_bytes: int = DEFAULT_RING_BYTES, name: str | None = None
    ) -> None:
        _require_linux()
        _sweep()
        self.name = name or _PREFIX + secrets.token_hex(8)
        self._clock = clock
        try:
            self._memory = SharedMemory(self.name, create=True, size=_DATA + ring_bytes + _BACK_BYTES)
        except FileExistsError:
            raise ConfigError(f"shm://{self.name}: another receiver has it; write another name") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"shm://{self.name}: {error}; write another name, or tcp://") from error
        self._segment = _Segment(self.name, self._memory.buf, _open(self.name))
        self._closed = False
        self._segment.lock(_RECEIVER)
        self._segment.words[1:3] = ring_bytes, _BACK_BYTES
        self._segment.words[0] = _MAGIC

    def accept(self, deadline: float) -> StreamIncoming:
        """The next sender. Raises late at the deadline."""
        segment = self._segment
        while segment.word(_EPOCH) == segment.word(_ACCEPTED) or not segment.is_there(_SENDER):
            if self._clock.now() >= deadline:
                raise late("a sender")
            time.sleep(_LONGEST_NAP)
        epoch = segment.word(_EPOCH)
        for ring in segment.rings():
            ring.clear()
            ring.close()
        stream = SharedStream(segment, epoch, sends=False, clock=self._clock, owns=False)
        segment.words[_ACCEPTED] = epoch
        return StreamIncoming(stream, self._clock)

    def close(self) -> None:
        """Remove the segment. Streams must be closed before."""
        if self._closed:
            return
        self._closed = True
        self._segment.close()
        with contextlib.suppress(BufferError):  # a stream that was left open keeps the mapping, not the name
            self._memory.close()
        self._memory.unlink()


def dial_shared(name: str, deadline: float, clock: Clock) -> StreamOutgoing:
    """Attach to a receiver's segment. Raises `Cut` where there is none, and late at the deadline."""
    _require_linux()
    try:
        descriptor = _open(name)
    except OSError as error:
        raise Cut(f"shm://{name}: no receiver has it: {error}") from error
    segment = None
    try:
        segment = _Segment(name, mmap.mmap(descriptor, 0), descriptor)
        if segment.word(0) != _MAGIC:
            raise Cut(f"shm://{name}: not a segment of a hand-off, or not ready")
        if not segment.is_there(_RECEIVER):
            raise Cut(f"shm://{name}: its receiver is gone")
        while not segment.lock(_SENDER):
            _nap(clock, deadline, f"another sender to leave shm://{name}")
        epoch = segment.word(_EPOCH) + 1
        segment.words[_EPOCH] = epoch
        while segment.word(_ACCEPTED) != epoch:
            _nap(clock, deadline, f"the receiver of shm://{name}")
            if not segment.is_there(_RECEIVER):
                raise Cut(f"shm://{name}: its receiver is gone")
        return StreamOutgoing(SharedStream(segment, epoch, sends=True, clock=clock, owns=True), clock)
    except (OSError, ValueError) as error:
        os.close(descriptor)
        raise Cut(f"shm://{name}: {error}") from error
    except BaseException:
        if segment is not None:
            segment.close()
        raise


def _nap(clock: Clock, deadline: float, what: str) -> None:
    if clock.now() >= deadline:
        raise late(what)
    time.sleep(_LONGEST_NAP)


def _open(name: str) -> int:
    if "/" in name or not name:
        raise ConfigError(f"shm://{name}: a segment's name has no slash")
    return os.open(_FOLDER / name, os.O_RDWR | os.O_CLOEXEC)


def _is_locked(descriptor: int, byte: int) -> bool:
    asked = _LOCK.pack(fcntl.F_WRLCK, 0, byte, 1, 0)
    answer = _LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))
    return bool(answer[0] != fcntl.F_UNLCK)


def _sweep() -> None:
    """Remove segments whose receiver was killed together with its resource tracker."""
    for path in _FOLDER.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime < _ABANDONED_SECONDS:
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if not _is_locked(descriptor, _RECEIVER):
                    path.unlink()
            finally:
                os.close(descriptor)


def _require_linux() -> None:
    if not sys.platform.startswith("linux") or not _FOLDER.is_dir():
        raise ConfigError("shm:// needs Linux with /dev/shm; write tcp://127.0.0.1:PORT")
