"""The pool of the demo: a real Valkey of its own, or a shared directory; both can be lost and come back."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ...errors import UsageError
from ...store.valkey.server import EmbeddedServer

__all__ = ["DemoPool", "open_demo_pool"]


class DemoPool(Protocol):
    """A pool that the demo may take away."""

    url: str
    what: str

    def lose(self) -> None:
        """Take it away while it is in use: a killed server, an unmounted directory."""

    def restore(self) -> None:
        """Bring it back, empty."""

    def close(self) -> None:
        """End it."""


class _Valkey:
    what = "an embedded Valkey server"

    def __init__(self, capacity_bytes: int) -> None:
        self._server = EmbeddedServer(max_memory_bytes=capacity_bytes)
        self.url = self._server.url

    def lose(self) -> None:
        self._server.kill()

    def restore(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.stop()


class _Directory:
    """A directory as a pool. To lose it, it is renamed, and a plain file takes its name."""

    what = "a shared directory"

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self._path = path
        self._away = path.with_name(f"{path.name}.away")

    def lose(self) -> None:
        self._path.rename(self._away)
        self._path.touch()

    def restore(self) -> None:
        self._path.unlink()
        self._away.rename(self._path)

    def close(self) -> None:
        if self._away.exists():
            self.restore()


class _Given:
    """A pool that somebody else runs: the demo uses it and does not take it away."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.what = f"the pool at {url}"

    def lose(self) -> None:
        raise UsageError(f"{self.url} is not ours to stop")

    def restore(self) -> None:
        raise UsageError(f"{self.url} is not ours to start")

    def close(self) -> None:
        pass


def open_demo_pool(url: str | None, capacity_bytes: int) -> DemoPool:
    """An embedded Valkey where no pool is given, else the pool at `url`.

    Raises UsageError for a directory that holds something already, MissingExtra without a Valkey to start.
    """
    if url is None:
        return _Valkey(capacity_bytes)
    scheme, _, rest = url.partition(":")
    if scheme != "files":
        return _Given(url)
    path = Path("/" + rest.lstrip("/")) if rest.startswith("//") else Path(rest).resolve()
    if path.exists() and any(path.iterdir()):
        raise UsageError(f"--pool {url}: {path} is not empty; name an empty or new directory")
    path.mkdir(parents=True, exist_ok=True)
    return _Directory(f"files://{path}", path)
