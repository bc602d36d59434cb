"""One connection to a server that speaks RESP2, bound by a deadline in every call.

Owns the socket, the framing of requests and replies, and the reading of bulk strings straight into given
memory. Refuses to know which commands exist and what keys mean.

The socket blocks, with its timeouts kept by the kernel (SO_RCVTIMEO, SO_SNDTIMEO): a value of megabytes
then arrives in one `recvmsg` with MSG_WAITALL, where a Python-level timeout would poll before each piece.
Any error leaves the connection closed: what is still in its pipe answers somebody else's question.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import TypeAlias

from ...clock import Clock
from ...errors import TierTimeout, TierUnavailable

__all__ = ["ABSENT", "WRONG_LENGTH", "Connection", "Reply", "ReplyReader", "ServerError", "command"]

ABSENT = 0
WRONG_LENGTH = 1
FILLED = 2

_PEEK_BYTES = 32
_IOV_MAX = 512
_BATCH_BYTES = 256 << 10
"""Given to the kernel in one call, or a piece that is larger: calls of many megabytes were slower by half."""
_READ_BYTES = 1 << 16
_LONGEST_LINE = 1 << 16
_SHORTEST_TIMEOUT = 0.001


class ServerError(Exception):
    """An error reply. As an element of an answer it stands for that command only."""


Reply: TypeAlias = "int | bytes | list[Reply] | ServerError | None"
"""A parsed RESP2 reply; simple strings are bytes."""


def command(*arguments: bytes) -> bytes:
    """A request in RESP: an array of bulk strings."""
    head = b"*%d\r\n" % len(arguments)
    return head + b"".join([b"$%d\r\n%b\r\n" % (len(a), a) for a in arguments])


class Connection:
    """A connection to `host:port`; used by one thread at a time."""

    def __init__(self, host: str, port: int, clock: Clock, deadline: float) -> None:
        self._clock = clock
        self._address = f"{host}:{port}"
        self._deadline = deadline
        self._recv_timeout = self._send_timeout = -1.0
        self.answered = False
        """Whether anything arrived since `begin`."""
        left = self._left()
        try:
            self._socket: socket.socket | None = socket.create_connection((host, port), timeout=left)
        except TimeoutError as error:
            raise TierTimeout(f"no connection to {self._address} within {left:.3f} s") from error
        except OSError as error:
            raise TierUnavailable(f"no connection to {self._address}: {error}") from error
        self._socket.setblocking(True)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def begin(self, deadline: float) -> None:
        """Start an exchange that must end by `deadline` (monotonic seconds of the clock)."""
        self._deadline = deadline
        self.answered = False

    def send(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send pieces in order, gathered by the kernel.

        All is made ready before the first byte goes: a server that runs dry between two calls falls asleep,
        and waking it costs both sides more than what was done meanwhile.
        """
        for batch, size in _batches(pieces):
            self._send_batch(batch, size)

    def read_into(self, parts: Sequence[memoryview], size: int) -> int:
        """Read a bulk string of `size` bytes into `parts`: FILLED, ABSENT, or WRONG_LENGTH (thrown away).

        Raises `ServerError` for an error reply, which leaves the connection in order.
        """
        line, left = self._line()
        if line == b"$%d" % size:
            self._receive_exactly([bytearray(left), *parts, bytearray(2)], left + size + 2)
            return FILLED
        if left:
            self._receive_exactly([bytearray(left)], left)
        if line == b"$-1":
            return ABSENT
        if line[:1] == b"-":
            raise ServerError(line[1:].decode("utf-8", "replace"))
        if line[:1] != b"$" or not line[1:].isdigit():
            raise self._broken(f"unexpected reply {line[:32]!r}")
        self._discard(int(line[1:]) + 2)
        return WRONG_LENGTH

    def read_replies(self, count: int) -> list[Reply]:
        """Read `count` whole replies. Error replies are elements, not raised."""
        reader = self.replies()
        replies = [reader.reply() for _ in range(count)]
        reader.finish()
        return replies

    def replies(self) -> ReplyReader:
        """A reader for an exchange whose requests are still being sent; `finish` ends it."""
        return ReplyReader(self)

    def close(self) -> None:
        """Close the socket; calling it twice is fine."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def receive_some(self) -> bytes:
        """At least one byte; used by the reply reader."""
        sock = self._arm_receive()
        try:
            data = sock.recv(_READ_BYTES)
        except OSError as error:
            raise self._failure(error) from error
        if not data:
            raise self._broken("closed by the server")
        self.answered = True
        return data

    def _send_batch(self, batch: Sequence[bytes | memoryview], left: int) -> None:
        while True:
            sock = self._arm_send()
            try:
                sent = sock.sendmsg(batch)
            except OSError as error:
                raise self._failure(error) from error
            left -= sent
            if left == 0:
                return
            batch = _after(batch, sent)

    def _line(self) -> tuple[bytes, int]:
        """The next reply's first line, without its end, and how many bytes of it are still in the pipe."""
        sock = self._arm_receive()
        flags = socket.MSG_PEEK
        for size in (_PEEK_BYTES, 1024, 65536):
            try:
                head = sock.recv(size, flags)
            except OSError as error:
                raise self._failure(error) from error
            if not head:
                raise self._broken("closed by the server")
            self.answered = True
            line, end, _ = head.partition(b"\r\n")
            if end:
                return line, len(line) + 2
            if len(head) < size:
                return self._cut_line(len(head)), 0
        raise self._broken("a reply line of more than 64 KiB")

    def _cut_line(self, seen: int) -> bytes:
        """Take a line that the network has cut after `seen` bytes, with its end.

        It must not be waited for with MSG_PEEK: what was only looked at still fills the receive window, and
        where the window is full the rest of the line never comes.
        """
        line = bytearray(seen)
        self._receive_exactly([line], seen)
        while not line.endswith(b"\r\n"):
            if len(line) >= _LONGEST_LINE:
                raise self._broken("a reply line of more than 64 KiB")
            byte = bytearray(1)
            self._receive_exactly([byte], 1)
            line += byte
        return bytes(line[:-2])

    def _receive_exactly(self, parts: Sequence[bytearray | memoryview], size: int) -> None:
        rest: Sequence[bytearray | memoryview] = parts
        while True:
            sock = self._arm_receive()
            try:
                got = sock.recvmsg_into(rest[:_IOV_MAX], 0, socket.MSG_WAITALL)[0]
            except OSError as error:
                raise self._failure(error) from error
            if got == 0:
                raise self._broken("closed by the server")
            size -= got
            if size == 0:
                return
            rest = _after([memoryview(part) for part in rest], got)

    def _discard(self, size: int) -> None:
        scratch = bytearray(min(size, 1 << 20))
        while size:
            step = min(size, len(scratch))
            self._receive_exactly([memoryview(scratch)[:step]], step)
            size -= step

    def _left(self) -> float:
        return max(_SHORTEST_TIMEOUT, self._deadline - self._clock.now())

    def _arm_receive(self) -> socket.socket:
        sock = self._alive()
        left = self._deadline - self._clock.now()
        if left <= 0:
            raise self._failure(TimeoutError())
        # Arming costs a system call, so a timeout that is only a little too long is kept.
        if not left <= self._recv_timeout <= left + 0.001:
            self._recv_timeout = max(left, _SHORTEST_TIMEOUT)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(self._recv_timeout))
        return sock

    def _arm_send(self) -> socket.socket:
        sock = self._alive()
        left = self._deadline - self._clock.now()
        if left <= 0:
            raise self._failure(TimeoutError())
        if not left <= self._send_timeout <= left + 0.001:
            self._send_timeout = max(left, _SHORTEST_TIMEOUT)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(self._send_timeout))
        return sock

    def _alive(self) -> socket.socket:
        if self._socket is None:
            raise TierUnavailable(f"the connection to {self._address} is closed")
        return self._socket

    def _failure(self, error: OSError) -> TierTimeout | TierUnavailable:
        self.close()
        if isinstance(error, BlockingIOError | TimeoutError):
            return TierTimeout(f"{self._address} did not answer in time")
        return TierUnavailable(f"{self._address}: {error}")

    def _broken(self, why: str) -> TierUnavailable:
        self.close()
        return TierUnavailable(f"{self._address}: {why}")


class ReplyReader:
    """Parses replies out of a connection; small replies only, values go through `read_into`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._data = b""
        self._at = 0

    def reply(self) -> Reply:
        """The next whole reply."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b":":
            return int(rest)
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self._bulk(size)
        if kind == b"+":
            return rest
        if kind == b"*":
            count = int(rest)
            if count < 0:
                return None
            integers = self._integers(count)
            return [self.reply() for _ in range(count)] if integers is None else integers
        if kind == b"-":
            return ServerError(rest.decode("utf-8", "replace"))
        raise self._connection._broken(f"unexpected reply {line[:32]!r}")

    def finish(self) -> None:
        """Check that nothing unasked for is left."""
        if self._at != len(self._data):
            raise self._connection._broken("more replies than requests")

    def _integers(self, count: int) -> list[Reply] | None:
        """The next `count` replies at once, where all are integers that have arrived; else None."""
        lines = self._data[self._at :].split(b"\r\n", count)
        if len(lines) <= count or not all(line.startswith(b":") for line in lines[:count]):
            return None
        self._at = len(self._data) - len(lines[count])
        return [int(line[1:]) for line in lines[:count]]

    def _line(self) -> bytes:
        while True:
            end = self._data.find(b"\r\n", self._at)
            if end >= 0:
                line = self._data[self._at : end]
                self._at = end + 2
                return line
            self._more()

    def _bulk(self, size: int) -> bytes:
        pieces = [self._data[self._at :]]
        have = len(pieces[0])
        while have < size + 2:
            pieces.append(self._connection.receive_some())
            have += len(pieces[-1])
        self._data, self._at = b"".join(pieces), size + 2
        return self._data[:size]

    def _more(self) -> None:
        self._data = self._data[self._at :] + self._connection.receive_some()
        self._at = 0


def _batches(pieces: Sequence[bytes | memoryview]) -> list[tuple[Sequence[bytes | memoryview], int]]:
    """The pieces as the kernel is given them, with the size of each batch."""
    batches: list[tuple[Sequence[bytes | memoryview], int]] = []
    first, size = 0, 0
    for i, piece in enumerate(pieces):
        size += len(piece)
        if size >= _BATCH_BYTES or i - first == _IOV_MAX - 1:
            batches.append((pieces[first : i + 1], size))
            first, size = i + 1, 0
    if size:
        batches.append((pieces[first:], size))
    return batches


def _after(pieces: Sequence[bytes | bytearray | memoryview], done: int) -> list[memoryview]:
    """What remains of `pieces` when their first `done` bytes have gone."""
    rest = []
    for piece in pieces:
        if done >= len(piece):
            done -= len(piece)
        else:
            rest.append(memoryview(piece)[done:])
            done = 0
    return rest


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("@ll", whole, int((seconds - whole) * 1e6) or (0 if whole else 1))
