"""Run an ASGI application on a port, with uvicorn: in the foreground, or on a thread for a while."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from ..errors import EngineError, UsageError

__all__ = ["check_port", "reserved", "serve", "serving"]

_GRACE_SECONDS = 5
_START_SECONDS = 10.0
_MOST_PORT = 65_535


def check_port(port: int, name: str = "port") -> None:
    """Raises UsageError where no port has that number."""
    if not 0 <= port <= _MOST_PORT:
        raise UsageError(f"{name} {port}: write 1 to {_MOST_PORT}, or 0 for a free one")


@contextlib.contextmanager
def reserved(host: str, port: int) -> Iterator[socket.socket]:
    """An address of one's own that refuses connections until `serve` listens on it. Port 0 takes a free one.

    It is taken before a model is loaded, so that a taken port is said at once. Raises UsageError.
    """
    check_port(port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        if port:
            # Connections of a server that has just ended linger; for a free port nothing has to be reused.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise _cannot_listen(host, port, error) from error
        yield listener


def serve(app: Any, listener: socket.socket, *, ready: Callable[[int], None] = lambda _: None) -> None:
    """Serve on a `reserved` address until SIGINT or SIGTERM, then return.

    `ready` hears the port once connections are accepted. Raises UsageError where another process, which had
    reserved the same port, listens by now.
    """
    host, port = listener.getsockname()[:2]
    try:
        listener.listen()
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    asyncio.run(_Server(app, lambda: ready(int(port))).serve(sockets=[listener]))


@contextlib.contextmanager
def serving(app: Any, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve on a thread inside a `with` block; gives the URL. Port 0 takes a free one."""
    up = threading.Event()
    with reserved(host, port) as listener:
        server = _Server(app, up.set)
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listener])), name="kvferry-http", daemon=True
        )
        thread.start()
        try:
            if not up.wait(_START_SECONDS):
                raise EngineError(f"the HTTP server did not start within {_START_SECONDS:g} s")
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(_GRACE_SECONDS + _START_SECONDS)


def _cannot_listen(host: str, port: int, error: OSError) -> UsageError:
    other = "address" if isinstance(error, socket.gaierror) else "port"
    return UsageError(f"cannot listen on {host} port {port}: {error.strerror}; choose another {other}")


class _Server(uvicorn.Server):
    """Says when it has begun to accept, and ends on a signal without raising it again.

    uvicorn would re-raise SIGTERM after its own shutdown, which would end the process before the engine
    behind the server has closed its files.
    """

    def __init__(self, app: Any, announce: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._announce()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        caught = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in caught}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
