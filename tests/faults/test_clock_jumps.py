"""Clocks that jump, as a step of NTP or a virtual machine that was stopped makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvferry.clock import VirtualClock
from kvferry.errors import TierUnavailable
from kvferry.store.backoff import BackedOff, State
from kvferry.store.files import FilesTier
from kvferry.store.memory import MemoryTier
from kvferry.store.ratelimited import RateLimited
from kvferry.store.tier import Found, Got, Put, Usage

from ..store.conftest import Blocks

DAY = 86_400.0
JUMPS = [-30 * DAY, -60.0, 60.0, 30 * DAY]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


class Gone(MemoryTier):
    """A tier that does not answer."""

    def usage(self, timeout_seconds: float) -> Usage:
        raise TierUnavailable("gone")


@pytest.mark.parametrize("jump", JUMPS)
def test_host_memory_does_not_look_at_the_wall(clock: VirtualClock, blocks: Blocks, jump: float) -> None:
    tier = MemoryTier(1 << 20, clock=clock)
    tier.put([blocks.key(1)], [[blocks.payload(1)]], 1.0, ttl_seconds=100.0)
    tier.lease([blocks.key(2)], b"me", 100.0, 1.0)
    clock.jump_wall(jump)
    assert tier.find([blocks.key(1), blocks.key(2)], 1.0) == bytes([Found.HELD, Found.LEASED])
    clock.advance(101.0)
    assert tier.find([blocks.key(1), blocks.key(2)], 1.0) == bytes([Found.GHOST, Found.ABSENT])


@pytest.mark.parametrize("jump", JUMPS)
def test_a_back_off_does_not_look_at_the_wall(clock: VirtualClock, jump: float) -> None:
    tier = BackedOff(Gone(1000), clock, first_seconds=2.0, jitter=0.0)
    with pytest.raises(TierUnavailable):
        tier.usage(1.0)
    clock.jump_wall(jump)
    assert (tier.state, tier.resting_seconds) == (State.RESTING, 2.0)


@pytest.mark.parametrize("jump", JUMPS)
def test_a_paced_link_does_not_look_at_the_wall(clock: VirtualClock, blocks: Blocks, jump: float) -> None:
    tier = RateLimited(MemoryTier(1 << 20, clock=clock), len(blocks.payload(1)) / 2.0, clock)
    tier.put([blocks.key(1)], [[blocks.payload(1)]], 10.0)
    clock.jump_wall(jump)
    began = clock.now()
    assert tier.get([blocks.key(1)], [[blocks.blank()]], 10.0) == bytes([Got.OK])
    assert clock.now() - began <= 4.0


def test_a_lease_in_a_directory_ends_early_when_the_clock_jumps_forward(
    clock: VirtualClock, tmp_path: Path, blocks: Blocks
) -> None:
    tier = FilesTier(tmp_path, clock=clock)
    assert tier.lease([blocks.key(1)], b"first", 60.0, 1.0) == b"\1"
    clock.jump_wall(DAY)
    # Two publishers of one block: the second finds it there, or writes the same bytes.
    assert tier.lease([blocks.key(1)], b"second", 60.0, 1.0) == b"\1"
    assert tier.put([blocks.key(1)], [[blocks.payload(1)]], 1.0) == bytes([Put.STORED])
    assert tier.put([blocks.key(1)], [[blocks.payload(1)]], 1.0) == bytes([Put.HELD])


def test_a_block_in_a_directory_outlives_a_clock_that_jumped_back_and_is_evicted_all_the_same(
    clock: VirtualClock, tmp_path: Path, blocks: Blocks
) -> None:
    size = len(blocks.payload(0))
    tier = FilesTier(tmp_path, capacity_bytes=2 * size, clock=clock, ghost_keys=1000)
    tier.put([blocks.key(0)], [[blocks.payload(0)]], 1.0, ttl_seconds=60.0)
    clock.jump_wall(-30 * DAY)
    for n in range(1, 5):
        clock.advance(1.0)
        assert tier.put([blocks.key(n)], [[blocks.payload(n)]], 1.0, ttl_seconds=60.0) == bytes([Put.STORED])
    used = tier.usage(1.0).used_bytes
    assert used is not None
    assert used <= 2 * size


@pytest.mark.parametrize("jump", JUMPS)
def test_no_jump_shows_a_wrong_byte(clock: VirtualClock, tmp_path: Path, blocks: Blocks, jump: float) -> None:
    tier = FilesTier(tmp_path, clock=clock)
    tier.put([blocks.key(1)], [[blocks.payload(1)]], 1.0, ttl_seconds=DAY)
    clock.jump_wall(jump)
    into = blocks.blank()
    (status,) = tier.get([blocks.key(1)], [[into]], 1.0)
    assert status in (Got.OK, Got.ABSENT)
    assert status == Got.ABSENT or into == blocks.payload(1)
