"""Lives of blocks in memory: their bound, idleness, the first read that never came."""

from __future__ import annotations

import pytest

from kvferry.clock import VirtualClock
from kvferry.store.hints import Hints
from kvferry.store.memory import MemoryTier
from kvferry.store.memory.lives import Life, Lives
from kvferry.store.tier import Found, Got, Vector

from ..conftest import Blocks

SIZE = 1024


class Rig:
    def __init__(self, blocks: Blocks, unread_seconds: float | None = None) -> None:
        self.blocks, self.clock = blocks, VirtualClock()
        self.evicted: list[tuple[list[bytes], bytes, int]] = []
        self.tier = MemoryTier(
            16 * SIZE,
            unread_seconds=unread_seconds,
            room=None,
            clock=self.clock,
            on_evicted=lambda keys, read, size: self.evicted.append((list(keys), read, size)),
        )

    def put(self, *numbers: int, ttl: float | None = None, hints: Hints | None = None) -> None:
        keys = [self.blocks.key(n) for n in numbers]
        self.tier.put(keys, [part() for _ in numbers], 9.0, ttl_seconds=ttl, hints=hints)

    def read(self, *numbers: int) -> bytes:
        return self.tier.get([self.blocks.key(n) for n in numbers], [part() for _ in numbers], 9.0)

    def held(self, count: int) -> list[int]:
        found = self.tier.find([self.blocks.key(n) for n in range(count)], 9.0)
        return [n for n, state in enumerate(found) if state == Found.HELD]


def part() -> Vector:
    return [memoryview(bytearray(SIZE))]


def test_what_nobody_reads_in_time_is_swept(blocks: Blocks) -> None:
    rig = Rig(blocks, unread_seconds=60.0)
    rig.put(0)
    rig.put(1)
    rig.clock.advance(59.0)
    rig.read(1)
    rig.clock.advance(2.0)
    assert rig.held(2) == [1]
    assert rig.evicted == [([blocks.key(0)], b"\0", SIZE)]


def test_what_was_read_once_is_not_swept(blocks: Blocks) -> None:
    rig = Rig(blocks, unread_seconds=60.0)
    rig.put(0)
    rig.read(0)
    rig.clock.advance(1e6)
    assert rig.held(1) == [0]


def test_looking_for_a_block_is_no_read(blocks: Blocks) -> None:
    rig = Rig(blocks, unread_seconds=60.0)
    rig.put(0)
    rig.clock.advance(30.0)
    assert rig.held(1) == [0]
    rig.clock.advance(31.0)
    assert rig.held(1) == []


def test_an_unread_head_waits_for_what_continues_it(blocks: Blocks) -> None:
    rig = Rig(blocks, unread_seconds=80.0)
    rig.put(0)
    rig.clock.advance(60.0)
    rig.put(0, 1)
    rig.clock.advance(25.0)
    assert rig.held(2) == [0, 1]
    rig.clock.advance(60.0)
    assert rig.held(2) == []
    assert [key for keys, _, _ in rig.evicted for key in keys] == [blocks.key(1), blocks.key(0)]


def test_an_unread_chain_goes_whole_from_its_tail(blocks: Blocks) -> None:
    rig = Rig(blocks, unread_seconds=60.0)
    rig.put(*range(8))
    rig.clock.advance(61.0)
    assert rig.held(8) == []
    assert rig.evicted == [([blocks.key(n) for n in reversed(range(8))], bytes(8), 8 * SIZE)]


def test_what_lies_idle_goes_and_reading_renews(blocks: Blocks) -> None:
    rig = Rig(blocks)
    rig.put(0, hints=Hints(idle_seconds=60.0))
    for _ in range(5):
        rig.clock.advance(50.0)
        assert rig.read(0) == bytes([Got.OK])
    rig.clock.advance(61.0)
    assert rig.held(1) == []
    assert rig.evicted == [([blocks.key(0)], b"\1", 0)]


def test_reading_does_not_extend_the_bound(blocks: Blocks) -> None:
    rig = Rig(blocks)
    rig.put(0, ttl=100.0, hints=Hints(idle_seconds=60.0))
    rig.clock.advance(50.0)
    rig.read(0)
    rig.clock.advance(51.0)
    assert rig.held(1) == []


def test_usage_tells_what_was_never_read(blocks: Blocks) -> None:
    rig = Rig(blocks, unread_seconds=60.0)
    rig.put(0, 1, 2)
    rig.read(0, 1)
    usage = rig.tier.usage(9.0)
    assert (usage.unread_bytes, usage.evicted_unread_bytes) == (SIZE, 0)
    rig.clock.advance(61.0)
    usage = rig.tier.usage(9.0)
    assert (usage.blocks, usage.unread_bytes, usage.evicted_unread_bytes) == (2, 0, SIZE)
    assert (usage.evicted_blocks, usage.evicted_unread_blocks) == (1, 1)


def test_what_somebody_dropped_was_not_evicted(blocks: Blocks) -> None:
    rig = Rig(blocks)
    rig.put(0)
    rig.tier.drop([blocks.key(0)], 9.0)
    assert rig.evicted == []
    assert rig.tier.usage(9.0).unread_bytes == 0


def test_scan_tells_what_was_read(blocks: Blocks) -> None:
    rig = Rig(blocks)
    rig.put(0, 1)
    rig.read(1)
    assert {entry.key: entry.read for entry in rig.tier.scan(9.0)} == {
        blocks.key(0): False,
        blocks.key(1): True,
    }


def test_the_listener_may_call_the_tier(blocks: Blocks) -> None:
    tier = MemoryTier(SIZE, room=None, on_evicted=lambda keys, read, size: seen.append(tier.find(keys, 1.0)))
    seen: list[bytes] = []
    for n in range(2):
        tier.put([blocks.key(n)], [part()], 1.0)
    assert seen == [bytes([Found.GHOST])]


@pytest.mark.parametrize("read", [False, True])
def test_a_life_without_end_is_not_queued(read: bool) -> None:
    lives = Lives()
    lives.add(b"k", Life(0.0, read_at=1.0 if read else None))
    assert lives.due(1e12) == []


def test_a_life_that_was_renewed_is_queued_once() -> None:
    lives, life = Lives(), Life(0.0, idle_seconds=10.0)
    lives.add(b"k", life)
    life.read_at = 8.0
    assert lives.due(10.0) == []
    assert lives.due(17.9) == []
    assert lives.due(18.0) == [(b"k", life)]
    assert lives.due(1e9) == []
