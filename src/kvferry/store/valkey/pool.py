"""Connections to one server, lent to one thread at a time.

Owns their making (AUTH, SELECT), their reuse, and the one retry that a connection deserves which died of
old age (the server restarted between two calls). A connection that failed or timed out is never reused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from ...clock import Clock
from ...errors import TierTimeout, TierUnavailable
from .connection import Connection, ServerError, command

__all__ = ["ConnectionPool"]

T = TypeVar("T")


class ConnectionPool:
    """Lends connections to `host:port`; `run` may be called from any thread."""

    def __init__(
        self,
        host: str,
        port: int,
        clock: Clock,
        *,
        database: int = 0,
        username: str | None = None,
        password: str | None = None,
        connect_seconds: float = 1.0,
    ) -> None:
        self._host, self._port, self._clock = host, port, clock
        self._connect_seconds = connect_seconds
        self._greeting: list[bytes] = []
        if password is not None:
            login = (username.encode(), password.encode()) if username else (password.encode(),)
            self._greeting.append(command(b"AUTH", *login))
        if database:
            self._greeting.append(command(b"SELECT", b"%d" % database))
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._owner = os.getpid()
        self._closed = False

    def run(self, timeout_seconds: float, exchange: Callable[[Connection], T]) -> T:
        """Run `exchange` over a connection whose calls end within `timeout_seconds`.

        Raises `TierTimeout` or `TierUnavailable`. An idle connection that turns out dead before it
        answered anything is replaced once.
        """
        deadline = self._clock.now() + timeout_seconds
        idle = self._take()
        if idle is not None:
            try:
                return self._use(idle, deadline, exchange)
            except TierUnavailable:
                if idle.answered:
                    raise
                self._forget_idle()
        return self._use(self._connect(deadline), deadline, exchange)

    def close(self) -> None:
        """Close idle connections; those in use are closed when they come back."""
        self._closed = True
        self._forget_idle()

    def _use(self, connection: Connection, deadline: float, exchange: Callable[[Connection], T]) -> T:
        connection.begin(deadline)
        try:
            answer = exchange(connection)
        except BaseException:
            # Whatever went wrong, replies may be left in the pipe.
            connection.close()
            raise
        self._give(connection)
        return answer

    def _connect(self, deadline: float) -> Connection:
        if self._closed:
            raise TierUnavailable(f"the tier at {self._host}:{self._port} is closed")
        # A host that swallows packets must not eat the whole budget of a long load.
        patience = min(deadline, self._clock.now() + self._connect_seconds)
        if patience <= self._clock.now():
            raise TierTimeout(f"no time left to connect to {self._host}:{self._port}")
        connection = Connection(self._host, self._port, self._clock, patience)
        if self._greeting:
            try:
                connection.send(self._greeting)
                replies = connection.read_replies(len(self._greeting))
            except BaseException:
                connection.close()
                raise
            for reply in replies:
                if isinstance(reply, ServerError):
                    connection.close()
                    raise TierUnavailable(
                        f"{self._host}:{self._port} refused the login or the database: {reply}; "
                        "check user, password and database in the pool's URL"
                    )
        return connection

    def _take(self) -> Connection | None:
        with self._lock:
            if self._owner != os.getpid():
                # Sockets inherited by fork belong to the parent: two readers would share one stream.
                self._idle.clear()
                self._owner = os.getpid()
            return self._idle.pop() if self._idle else None

    def _give(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _forget_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
