"""The stopwatch tells bytes, seconds and how many were in flight."""

from __future__ import annotations

import pytest

from kvferry.clock import VirtualClock
from kvferry.errors import TierUnavailable
from kvferry.store.measured import Measured
from kvferry.store.memory import MemoryTier
from kvferry.store.ratelimited import RateLimited
from kvferry.store.tier import Got, Put

from .conftest import Blocks

Seen = tuple[str, int, int, float, float, bytes]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def seen() -> list[Seen]:
    return []


@pytest.fixture
def tier(clock: VirtualClock, seen: list[Seen]) -> Measured:
    link = RateLimited(MemoryTier(8 << 20, clock=clock), 1e6, clock)
    return Measured(link, lambda *what: seen.append(what), clock)


def test_a_write_and_a_read_are_told(tier: Measured, seen: list[Seen], blocks: Blocks) -> None:
    size = len(blocks.payload(1))
    tier.put([blocks.key(1)], [[blocks.payload(1)]], 10.0)
    tier.get([blocks.key(1), blocks.key(2)], [[blocks.blank()], [blocks.blank()]], 10.0)
    assert seen == [
        ("put", 1, size, pytest.approx(size / 1e6), pytest.approx(1.0), bytes([Put.STORED])),
        ("get", 2, size, pytest.approx(size / 1e6), pytest.approx(1.0), bytes([Got.OK, Got.ABSENT])),
    ]


def test_a_call_that_raised_is_told_without_statuses(tier: Measured, seen: list[Seen]) -> None:
    tier.close()
    with pytest.raises(TierUnavailable):
        tier.find([b"k"], 1.0)
    assert seen == [("find", 1, 0, 0.0, 0.0, b"")]
