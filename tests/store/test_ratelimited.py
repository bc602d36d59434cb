"""The limit holds, to the byte, on a clock that moves only when told."""

from __future__ import annotations

import pytest

from kvferry.clock import VirtualClock
from kvferry.errors import ConfigError
from kvferry.store.memory import MemoryTier
from kvferry.store.ratelimited import RateLimited
from kvferry.store.tier import Got, Put

from .conftest import Blocks

RATE = 1e6


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def link(clock: VirtualClock, blocks: Blocks) -> RateLimited:
    tier = RateLimited(MemoryTier(64 << 20, clock=clock), None, clock)
    tier.put([blocks.key(n) for n in range(10)], [[blocks.payload(n)] for n in range(10)], 1.0)
    tier.bytes_per_second = RATE
    return tier


def read(link: RateLimited, blocks: Blocks, *numbers: int, timeout: float = 100.0) -> bytes:
    return link.get([blocks.key(n) for n in numbers], [[blocks.blank()] for _ in numbers], timeout)


def test_a_batch_takes_its_bytes_over_the_rate(
    link: RateLimited, clock: VirtualClock, blocks: Blocks
) -> None:
    start = clock.now()
    assert set(read(link, blocks, *range(10))) == {Got.OK}
    assert clock.now() - start == pytest.approx(10 * len(blocks.payload(0)) / RATE)


def test_one_value_is_not_free(link: RateLimited, clock: VirtualClock, blocks: Blocks) -> None:
    clock.advance(1000)
    start = clock.now()
    read(link, blocks, 1)
    assert clock.now() - start == pytest.approx(len(blocks.payload(0)) / RATE)


def test_writes_pay_too(link: RateLimited, clock: VirtualClock, blocks: Blocks) -> None:
    start = clock.now()
    assert link.put([blocks.key(20)], [[blocks.payload(20)]], 100.0) == bytes([Put.STORED])
    assert clock.now() - start == pytest.approx(len(blocks.payload(0)) / RATE)


def test_the_deadline_cuts_a_batch(link: RateLimited, clock: VirtualClock, blocks: Blocks) -> None:
    start = clock.now()
    timeout = 2.5 * len(blocks.payload(0)) / RATE
    assert read(link, blocks, 0, 1, 2, 3, timeout=timeout) == bytes([Got.OK, Got.OK, Got.LATE, Got.LATE])
    assert clock.now() - start == pytest.approx(timeout)


def test_what_is_absent_costs_no_time(link: RateLimited, clock: VirtualClock, blocks: Blocks) -> None:
    start = clock.now()
    assert read(link, blocks, 99) == bytes([Got.ABSENT])
    assert clock.now() == start


def test_the_rate_may_be_changed_and_lifted(link: RateLimited, clock: VirtualClock, blocks: Blocks) -> None:
    link.bytes_per_second = 2 * RATE
    start = clock.now()
    read(link, blocks, 1)
    assert clock.now() - start == pytest.approx(len(blocks.payload(0)) / RATE / 2)
    link.bytes_per_second = None
    start = clock.now()
    read(link, blocks, 1)
    assert clock.now() == start


@pytest.mark.parametrize("rate", [0, -1.0, float("nan")])
def test_a_rate_of_nothing_is_refused(link: RateLimited, rate: float) -> None:
    with pytest.raises(ConfigError, match="bytes_per_second"):
        link.bytes_per_second = rate
