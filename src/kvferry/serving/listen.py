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

from ..errors import EngineError

__all__ = ["serve", "serving"]

_GRACE_SECONDS = 5
_START_SECONDS = 10.0


def serve(
    app: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    ready: Callable[[int], None] = lambda _: None,
) -> None:
    """Serve until SIGINT or SIGTERM, then return. Port 0 takes a free one.

    `ready` hears the port once connections are accepted. Raises EngineError when it cannot be bound.
    """
    with _bound(host, port) as listener:
        taken = int(listener.getsockname()[1])
        asyncio.run(_Server(app, lambda: ready(taken)).serve(sockets=[listener]))


@contextlib.contextmanager
def serving(app: Any, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve on a thread inside a `with` block; gives the URL. Port 0 takes a free one."""
    up = threading.Event()
    with _bound(host, port) as listener:
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


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise EngineError(
                f"cannot listen on {host} port {port}: {error.strerror}; choose another port"
            ) from error
        yield listener


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
