"""A value may be cut anywhere: also into more parts than one system call takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvferry.store.files import FilesTier
from kvferry.store.memory import MemoryTier
from kvferry.store.tier import Got, Put, Tier, Vector
from kvferry.store.valkey import EmbeddedServer, ValkeyTier

KEY = b"k" * 32
DATA = bytes(range(250)) * 40


@pytest.fixture(params=["memory", "files", "valkey"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tier]:
    made: dict[str, type] = {"memory": MemoryTier, "files": FilesTier}
    if request.param == "valkey":
        server = request.getfixturevalue("server")
        assert isinstance(server, EmbeddedServer)
        opened: Tier = ValkeyTier(server.host, server.port, ghost_keys=1000)
    else:
        opened = made[request.param](tmp_path if request.param == "files" else 1 << 20)
    with contextlib.closing(opened):
        yield opened


def cut(data: memoryview, parts: int) -> Vector:
    return [*(data[n : n + 1] for n in range(parts - 1)), data[parts - 1 :]]


@pytest.mark.parametrize("parts", [510, 511, 512, 1022, 1023, 1024, 1025, 3000])
def test_any_number_of_parts(tier: Tier, parts: int) -> None:
    assert tier.put([KEY], [cut(memoryview(DATA), parts)], 5.0) == bytes([Put.STORED])
    into = bytearray(len(DATA))
    assert tier.get([KEY], [cut(memoryview(into), parts)], 5.0) == bytes([Got.OK])
    assert into == DATA
