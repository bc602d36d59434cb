"""The demo's damage to a pool is what a reader of the pool then finds."""

from __future__ import annotations

import asyncio

import pytest

from kvferry.errors import EngineError
from kvferry.keys.pool import record_key
from kvferry.measure.vllm.pool import break_block, until_published
from kvferry.store.framed import FramedTier
from kvferry.store.memory import MemoryTier
from kvferry.store.tier import Got

KEYS = [bytes([n]) * 32 for n in range(1, 4)]
NAMES = [record_key(key) for key in KEYS]


@pytest.fixture
def pool() -> MemoryTier:
    tier = MemoryTier(1 << 20)
    FramedTier(tier, b"n" * 32).put(KEYS, [memoryview(b"v" * 100)] * 3, 1.0)
    return tier


def test_a_broken_block_is_corrupt_and_the_others_are_not(pool: MemoryTier) -> None:
    break_block(pool, NAMES[1])
    into = [memoryview(bytearray(100)) for _ in KEYS]
    found = FramedTier(pool, b"n" * 32).get(KEYS, into, 1.0)
    assert list(found) == [Got.OK, Got.CORRUPT, Got.OK]


def test_a_block_that_is_not_there_cannot_be_broken(pool: MemoryTier) -> None:
    with pytest.raises(EngineError, match="does not hold"):
        break_block(pool, "00" * 16)


def test_what_is_published_is_not_waited_for(pool: MemoryTier) -> None:
    assert asyncio.run(until_published(pool, NAMES)) == 0


def test_what_never_comes_is_counted(pool: MemoryTier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry.measure.vllm.pool._MOST_POLLS", 1)
    assert asyncio.run(until_published(pool, [*NAMES, "00" * 16])) == 1
