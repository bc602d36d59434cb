"""What is particular to host memory: slots, pins, order of eviction."""

from __future__ import annotations

import pytest

from kvferry.clock import VirtualClock
from kvferry.errors import ConfigError
from kvferry.store.memory import MemoryTier
from kvferry.store.tier import Found, Got, Put, Vector

from ..conftest import Blocks

SIZE = 1024


def part(number: int, size: int = SIZE) -> Vector:
    return [memoryview(bytearray([number % 256]) * size)]


def fill(tier: MemoryTier, blocks: Blocks, *numbers: int) -> bytes:
    return tier.put([blocks.key(n) for n in numbers], [part(n) for n in numbers], 1.0)


def held(tier: MemoryTier, blocks: Blocks, count: int) -> list[int]:
    found = tier.find([blocks.key(n) for n in range(count)], 1.0)
    return [n for n, state in enumerate(found) if state == Found.HELD]


def test_the_least_recently_used_goes_first(blocks: Blocks) -> None:
    tier = MemoryTier(3 * SIZE)
    for n in range(3):
        fill(tier, blocks, n)
    tier.get([blocks.key(0)], [part(0)], 1.0)
    fill(tier, blocks, 3)
    assert held(tier, blocks, 4) == [0, 2, 3]


def test_the_tail_of_a_chain_goes_first(blocks: Blocks) -> None:
    tier = MemoryTier(3 * SIZE)
    fill(tier, blocks, 0, 1, 2)
    fill(tier, blocks, 3)
    assert held(tier, blocks, 4) == [0, 1, 3]


def test_finding_is_no_use(blocks: Blocks) -> None:
    tier = MemoryTier(2 * SIZE)
    fill(tier, blocks, 0)
    fill(tier, blocks, 1)
    tier.find([blocks.key(0)], 1.0)
    fill(tier, blocks, 2)
    assert held(tier, blocks, 3) == [1, 2]


def test_a_batch_does_not_evict_itself(blocks: Blocks) -> None:
    tier = MemoryTier(2 * SIZE)
    assert fill(tier, blocks, 0, 1, 2) == bytes([Put.STORED, Put.STORED, Put.FULL])


def test_a_block_dropped_while_it_is_read_is_still_read_whole(
    blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvferry.store.memory import tier as module

    tier = MemoryTier(2 * SIZE)
    fill(tier, blocks, 1)
    copy = module.copy_parts

    def meanwhile(into: Vector, source: Vector) -> None:
        monkeypatch.setattr(module, "copy_parts", copy)
        tier.drop([blocks.key(1)], 1.0)
        fill(tier, blocks, 2, 3)
        copy(into, source)

    monkeypatch.setattr(module, "copy_parts", meanwhile)
    into = [memoryview(bytearray(SIZE))]
    assert tier.get([blocks.key(1)], [into], 1.0) == bytes([Got.OK])
    assert into == part(1)
    assert fill(tier, blocks, 4, 5) == bytes([Put.STORED, Put.STORED])


def test_usage_counts_what_slots_waste(blocks: Blocks) -> None:
    tier = MemoryTier(10 * SIZE, slot_bytes=SIZE)
    tier.put([blocks.key(1)], [part(1, SIZE + 1)], 1.0)
    usage = tier.usage(1.0)
    assert (usage.used_bytes, usage.fragmentation_bytes) == (SIZE + 1, SIZE - 1)


def test_an_expired_block_makes_room_before_a_used_one(blocks: Blocks) -> None:
    clock = VirtualClock()
    tier = MemoryTier(2 * SIZE, clock=clock)
    fill(tier, blocks, 0)
    tier.put([blocks.key(1)], [part(1)], 1.0, ttl_seconds=1.0)
    clock.advance(2.0)
    fill(tier, blocks, 2)
    assert held(tier, blocks, 3) == [0, 2]


def test_a_stored_anew_block_does_not_die_of_its_old_life(blocks: Blocks) -> None:
    clock = VirtualClock()
    tier = MemoryTier(2 * SIZE, clock=clock)
    tier.put([blocks.key(1)], [part(1)], 1.0, ttl_seconds=5.0)
    tier.drop([blocks.key(1)], 1.0)
    tier.put([blocks.key(1)], [part(1)], 1.0, ttl_seconds=50.0)
    clock.advance(10.0)
    assert tier.find([blocks.key(1)], 1.0) == bytes([Found.HELD])


def test_a_clock_that_jumps_ends_no_life(blocks: Blocks) -> None:
    clock = VirtualClock()
    tier = MemoryTier(2 * SIZE, clock=clock)
    tier.put([blocks.key(1)], [part(1)], 1.0, ttl_seconds=5.0)
    clock.jump_wall(1e6)
    assert tier.find([blocks.key(1)], 1.0) == bytes([Found.HELD])


@pytest.mark.parametrize(("capacity", "slot"), [(0, None), (-5, None), (10, 0), (10, 11)])
def test_senseless_sizes_are_refused(capacity: int, slot: int | None) -> None:
    with pytest.raises(ConfigError, match="capacity"):
        MemoryTier(capacity, slot_bytes=slot)
