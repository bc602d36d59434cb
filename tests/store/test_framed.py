"""What a framed tier reports of blocks that were touched in the tier itself."""

from __future__ import annotations

import threading
import time

import pytest

from kvferry.errors import FormatError
from kvferry.store.frame import HEADER_BYTES, Flaw
from kvferry.store.framed import FramedTier
from kvferry.store.memory import MemoryTier
from kvferry.store.tier import Got, Put

from .conftest import Blocks

OURS = b"o" * 32


@pytest.fixture
def tier() -> MemoryTier:
    return MemoryTier(8 << 20)


@pytest.fixture
def heard() -> list[tuple[bytes, Flaw]]:
    return []


@pytest.fixture
def framed(tier: MemoryTier, heard: list[tuple[bytes, Flaw]]) -> FramedTier:
    return FramedTier(tier, OURS, on_flaw=lambda key, flaw: heard.append((key, flaw)))


def replace(tier: MemoryTier, key: bytes, value: bytes) -> None:
    tier.drop([key], 1.0)
    assert tier.put([key], [[memoryview(bytearray(value))]], 1.0) == bytes([Put.STORED])


def raw(tier: MemoryTier, key: bytes, size: int) -> bytearray:
    value = bytearray(size)
    assert tier.get([key], [[memoryview(value)]], 1.0) == bytes([Got.OK])
    return value


def store(framed: FramedTier, blocks: Blocks, *numbers: int) -> None:
    keys = [blocks.key(n) for n in numbers]
    assert set(framed.put(keys, [blocks.payload(n) for n in numbers], 1.0)) == {Put.STORED}


def test_blocks_come_back_as_they_were(framed: FramedTier, blocks: Blocks) -> None:
    store(framed, blocks, 1, 2)
    into = [blocks.blank(), blocks.blank()]
    assert framed.get([blocks.key(1), blocks.key(2)], into, 1.0) == bytes([Got.OK, Got.OK])
    assert into == [blocks.payload(1), blocks.payload(2)]


def test_a_truncated_block_is_corrupt(tier: MemoryTier, framed: FramedTier, blocks: Blocks) -> None:
    store(framed, blocks, 1)
    value = raw(tier, blocks.key(1), HEADER_BYTES + len(blocks.payload(1)))
    replace(tier, blocks.key(1), value[:-1])
    assert framed.get([blocks.key(1)], [blocks.blank()], 1.0) == bytes([Got.CORRUPT])


def test_swapped_blocks_are_alien(
    tier: MemoryTier, framed: FramedTier, blocks: Blocks, heard: list[tuple[bytes, Flaw]]
) -> None:
    store(framed, blocks, 1, 2)
    size = HEADER_BYTES + len(blocks.payload(1))
    first, second = raw(tier, blocks.key(1), size), raw(tier, blocks.key(2), size)
    replace(tier, blocks.key(1), second)
    replace(tier, blocks.key(2), first)
    keys = [blocks.key(1), blocks.key(2)]
    assert framed.get(keys, [blocks.blank(), blocks.blank()], 1.0) == bytes([Got.ALIEN] * 2)
    assert heard == [(key, Flaw.KEY) for key in keys]


def test_a_namespace_of_another_length_is_refused(tier: MemoryTier) -> None:
    with pytest.raises(FormatError, match="32 bytes"):
        FramedTier(tier, b"short")


def test_no_payload_is_read_after_a_put_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second thread of a window has ended when the put returns, with whatever it returns."""
    reading, begun = threading.Event(), threading.Event()

    def slow(_: object) -> bytes:
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(5.0)
            raise FormatError("a header that cannot be")
        reading.set()
        begun.set()
        time.sleep(0.05)
        reading.clear()
        return bytes(16)

    monkeypatch.setattr("kvferry.store.framed.xxh3_128_digest", slow)
    blocks = [memoryview(bytearray(64 << 10)) for _ in range(8)]
    with pytest.raises(FormatError):
        FramedTier(MemoryTier(8 << 20), OURS).put([bytes([i]) * 32 for i in range(8)], blocks, 1.0)
    assert not reading.is_set()
