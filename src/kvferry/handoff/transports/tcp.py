"""A byte stream between two hosts: kernel sockets, scattered and gathered, with a deadline on every wait.

Bytes go from the caller's buffers to the kernel and back without a copy in between (`sendmsg`,
`recvmsg_into`). The kernel's buffers are the window: a receiver that does not read stops the sender. There
is no authentication and no encryption: keep it on a private network.
"""

from __future__ import annotations

import contextlib
import socket

from ...clock import Clock
from ...errors import ConfigError
from ..wire.failed import Cut, late
from .contract import Vector
from .stream import StreamIncoming, StreamOutgoing

__all__ = ["TcpListener", "TcpStream", "dial_tcp"]

_MOST_PARTS = 256
_BUFFER_BYTES = 4 << 20


class TcpStream:
    """One connection. Used by one thread at a time."""

    def __init__(self, connection: socket.socket, clock: Clock) -> None:
        self._socket = connection
        self._clock = clock
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, parts: Vector, deadline: float) -> None:
        left = [part for part in parts if part.nbytes]
        while left:
            self._wait_until(deadline, "room to send")
            try:
                sent = self._socket.sendmsg(left[:_MOST_PARTS])
            except TimeoutError:
                raise late("the receiver to read") from None
            except OSError as error:
                raise Cut(f"the receiver is gone: {error}") from error
            left = _behind(left, sent)

    def fill(self, parts: Vector, deadline: float) -> None:
        left = [part for part in parts if part.nbytes]
        while left:
            self._wait_until(deadline, "bytes")
            try:
                got = self._socket.recvmsg_into(left[:_MOST_PARTS])[0]
            except TimeoutError:
                raise late("bytes of the other side") from None
            except OSError as error:
                raise Cut(f"the connection broke: {error}") from error
            if got == 0:
                raise Cut("the other side closed the connection")
            left = _behind(left, got)

    def close(self) -> None:
        self._socket.close()

    def _wait_until(self, deadline: float, what: str) -> None:
        seconds = deadline - self._clock.now()
        if seconds <= 0.0:
            raise late(what)
        self._socket.settimeout(seconds)


class TcpListener:
    """Where senders connect to; `port` is the one that was taken."""

    def __init__(self, host: str, port: int, clock: Clock) -> None:
        self._clock = clock
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise ConfigError(f"tcp://{host}:{port}: {error}; write an address of this machine") from error
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            self._socket.bind((host, port))
            self._socket.listen(8)
        except OSError as error:
            self._socket.close()
            raise ConfigError(
                f"tcp://{host}:{port}: {error}; another receiver may have it: write port 0 for a free one"
            ) from error
        self.host: str = host
        self.port: int = self._socket.getsockname()[1]

    def accept(self, deadline: float) -> StreamIncoming:
        """The next connection. Raises late at the deadline."""
        seconds = deadline - self._clock.now()
        if seconds <= 0.0:
            raise late("a sender")
        self._socket.settimeout(seconds)
        try:
            connection, _ = self._socket.accept()
        except TimeoutError:
            raise late("a sender") from None
        except OSError as error:
            raise Cut(f"cannot accept a sender: {error}") from error
        return StreamIncoming(TcpStream(connection, self._clock), self._clock)

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._socket.close()


def dial_tcp(host: str, port: int, deadline: float, clock: Clock) -> StreamOutgoing:
    """Connect to a receiver. Raises `Cut` where nobody listens, and late at the deadline."""
    seconds = deadline - clock.now()
    if seconds <= 0.0:
        raise late(f"tcp://{host}:{port}")
    try:
        connection = socket.create_connection((host, port), seconds)
    except TimeoutError:
        raise late(f"tcp://{host}:{port}") from None
    except OSError as error:
        raise Cut(f"tcp://{host}:{port}: {error}") from error
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return StreamOutgoing(TcpStream(connection, clock), clock)


def _behind(parts: list[memoryview], done: int) -> list[memoryview]:
    """What is left of the parts after `done` bytes."""
    for number, part in enumerate(parts):
        if done < part.nbytes:
            return [part[done:], *parts[number + 1 :]]
        done -= part.nbytes
    return []
