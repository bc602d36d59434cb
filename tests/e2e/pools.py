"""Real pools, looked at and damaged from outside: what a replica does not do by itself."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from kvferry.runs.decisions import DecisionRecord
from kvferry.store.frame import HEADER_BYTES
from kvferry.store.open import open_tier
from kvferry.store.tier import Tier

from .served import eventually

__all__ = ["FilesPool", "Pool", "ValkeyPool"]

IN_PAYLOAD = HEADER_BYTES + 100


class Pool(Protocol):
    """A pool that tests may look into."""

    url: str

    def keys(self, record: DecisionRecord) -> list[bytes | None]:
        """For each full block of the request: its pool key where the pool holds it, else None."""

    def wait_for(self, record: DecisionRecord, blocks: int) -> None:
        """Wait until the pool holds the first `blocks` blocks of the request."""

    def flip(self, key: bytes, at: int = IN_PAYLOAD) -> None:
        """Change the byte at this place of a stored block."""

    def notes(self) -> list[str]:
        """Names of all notes."""


class _Looked:
    url: str

    def keys(self, record: DecisionRecord) -> list[bytes | None]:
        with self._open() as tier:
            held = {entry.key[:16].hex(): entry.key for entry in tier.scan(10.0)}
        return [held.get(name) for name in record.keys]

    def wait_for(self, record: DecisionRecord, blocks: int) -> None:
        for _ in eventually(f"{blocks} blocks of {record.request_id} in {self.url}"):
            if all(self.keys(record)[:blocks]):
                return

    def notes(self) -> list[str]:
        with self._open() as tier:
            return tier.notes("", 10.0)

    @contextlib.contextmanager
    def _open(self) -> Iterator[Tier]:
        with contextlib.closing(open_tier(self.url)) as tier:
            yield tier


class ValkeyPool(_Looked):
    def __init__(self, url: str, port: int) -> None:
        self.url = url
        self._port = port

    def flip(self, key: bytes, at: int = IN_PAYLOAD) -> None:
        name, place = b"kvferry:b:" + key, b"%d" % at
        old = self.say(b"GETRANGE", name, place, place).split(b"\r\n", 1)[1][:1]
        self.say(b"SETRANGE", name, place, bytes([old[0] ^ 1]))

    def say(self, *words: bytes) -> bytes:
        """The raw reply to one command."""
        return _say(self._port, words)


class FilesPool(_Looked):
    def __init__(self, folder: Path, query: str = "") -> None:
        self.url = f"files://{folder}{query}"
        self.folder = folder

    def flip(self, key: bytes, at: int = IN_PAYLOAD) -> None:
        (path,) = self.folder.glob(f"blocks/*/{key.hex()}")
        with path.open("r+b") as file:
            file.seek(at)
            old = file.read(1)
            file.seek(at)
            file.write(bytes([old[0] ^ 1]))


def _say(port: int, words: Sequence[bytes]) -> bytes:
    """Say something to the Valkey server on `port`; its raw reply of up to 64 KiB."""
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
        connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words))
        reply = connection.recv(65536)
    if reply.startswith(b"-"):
        raise RuntimeError(reply.decode())
    return reply
