"""What the tests of the store share: blocks, and a server of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from kvferry.store.valkey import EmbeddedServer


class Blocks:
    """Keys and payloads by number, and blank memory to read into."""

    payload_bytes = 100_000

    def key(self, number: int) -> bytes:
        return hashlib.sha256(b"block %d" % number).digest()

    def payload(self, number: int) -> memoryview:
        pattern = hashlib.sha256(b"payload %d" % number).digest()
        return memoryview(bytearray(pattern * (self.payload_bytes // 32)))

    def blank(self) -> memoryview:
        return memoryview(bytearray(len(self.payload(0))))


@pytest.fixture
def blocks() -> Blocks:
    return Blocks()


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(max_memory_bytes=256 << 20) as running:
        yield running
