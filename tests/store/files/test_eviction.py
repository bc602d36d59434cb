"""Which files go, what is told of them, and what processes that share a directory know of it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from kvferry.clock import VirtualClock
from kvferry.store.files import FilesTier
from kvferry.store.hints import Hints
from kvferry.store.tier import Found, Got

from ..conftest import Blocks

LATER = 11.0
"""Uses are told apart in steps of ten seconds."""


class Rig:
    def __init__(
        self, place: Path, blocks: Blocks, capacity: int = 3, unread_seconds: float | None = None
    ) -> None:
        self.blocks, self.clock = blocks, VirtualClock()
        self.size = len(blocks.payload(0))
        self.evicted: list[tuple[list[bytes], bytes, int]] = []
        self.tier = FilesTier(
            place,
            capacity_bytes=capacity * self.size,
            unread_seconds=unread_seconds,
            ghost_keys=1000,
            clock=self.clock,
            on_evicted=lambda keys, read, size: self.evicted.append((list(keys), read, size)),
        )

    def put(self, *numbers: int, ttl: float | None = None, hints: Hints | None = None) -> None:
        keys = [self.blocks.key(n) for n in numbers]
        self.tier.put(keys, [[self.blocks.payload(n)] for n in numbers], 9.0, ttl_seconds=ttl, hints=hints)

    def read(self, *numbers: int) -> bytes:
        into = [[self.blocks.blank()] for _ in numbers]
        return self.tier.get([self.blocks.key(n) for n in numbers], into, 9.0)

    def held(self, count: int) -> list[int]:
        found = self.tier.find([self.blocks.key(n) for n in range(count)], 9.0)
        return [n for n, state in enumerate(found) if state == Found.HELD]


@pytest.fixture
def rig(tmp_path: Path, blocks: Blocks) -> Rig:
    return Rig(tmp_path, blocks)


def test_the_least_recently_used_goes_first(rig: Rig) -> None:
    for n in range(3):
        rig.put(n)
        rig.clock.advance(LATER)
    rig.read(0)
    rig.clock.advance(LATER)
    rig.put(3)
    assert rig.held(4) == [0, 2, 3]


def test_the_tail_of_a_chain_goes_first(rig: Rig) -> None:
    rig.put(0, 1, 2)
    rig.put(3)
    assert rig.held(4) == [0, 1, 3]


def test_the_tail_of_a_chain_goes_first_although_it_came_and_was_read_later(
    tmp_path: Path, blocks: Blocks
) -> None:
    rig = Rig(tmp_path, blocks, capacity=4)
    rig.put(0, 1)
    rig.clock.advance(0.1)
    rig.put(2, 3, hints=Hints(after=blocks.key(1)))
    rig.read(0, 1)
    rig.clock.advance(0.1)
    rig.read(2, 3)
    rig.put(4)
    assert rig.held(5) == [0, 1, 2, 4]


def test_of_what_was_not_used_since_the_unread_goes_first(rig: Rig) -> None:
    for n in range(3):
        rig.put(n)
    rig.read(0)
    rig.read(1)
    rig.put(3)
    assert rig.held(4) == [0, 1, 3]


def test_what_nobody_reads_in_time_goes_first_and_is_booked(tmp_path: Path, blocks: Blocks) -> None:
    rig = Rig(tmp_path, blocks, unread_seconds=60.0)
    rig.put(0)
    rig.clock.advance(LATER)
    rig.put(1)
    rig.read(0)
    rig.clock.advance(75.0)
    assert rig.held(2) == [0]
    rig.put(2)
    rig.put(3)
    assert rig.held(4) == [0, 2, 3]
    assert rig.evicted == [([blocks.key(1)], b"\0", rig.size)]
    usage = rig.tier.usage(9.0)
    assert (usage.evicted_blocks, usage.evicted_unread_blocks) == (1, 1)
    assert usage.evicted_unread_bytes == rig.size


def test_sweeping_gives_the_room_back_at_once(rig: Rig) -> None:
    rig.put(0, 1)
    rig.read(1)
    rig.clock.advance(75.0)
    assert rig.tier.sweep(9.0) == 0
    assert rig.tier.sweep(9.0, unread_seconds=60.0) == 1
    assert rig.tier.usage(9.0).used_bytes == rig.size
    assert rig.held(2) == [1]


def test_what_lies_idle_goes_and_reading_renews(rig: Rig) -> None:
    rig.put(0, hints=Hints(idle_seconds=60.0))
    for _ in range(5):
        rig.clock.advance(55.0)
        assert rig.read(0) == bytes([Got.OK])
    rig.clock.advance(75.0)
    assert rig.read(0) == bytes([Got.ABSENT])
    assert rig.tier.find([rig.blocks.key(0)], 9.0) == bytes([Found.GHOST])


def test_reading_does_not_extend_the_bound(rig: Rig) -> None:
    rig.put(0, ttl=100.0, hints=Hints(idle_seconds=60.0))
    rig.clock.advance(50.0)
    rig.read(0)
    rig.clock.advance(51.0)
    assert rig.held(1) == []


def test_scan_tells_what_was_read_by_any_process(tmp_path: Path, rig: Rig, blocks: Blocks) -> None:
    rig.put(0, 1)
    other = FilesTier(tmp_path, clock=rig.clock)
    other.get([blocks.key(1)], [[blocks.blank()]], 9.0)
    assert {e.key: e.read for e in rig.tier.scan(9.0)} == {blocks.key(0): False, blocks.key(1): True}


def test_who_opens_without_a_capacity_sees_that_of_the_others(tmp_path: Path, rig: Rig) -> None:
    assert FilesTier(tmp_path).usage(9.0).capacity_bytes == 3 * rig.size


def test_counts_of_evictions_outlive_the_process(tmp_path: Path, rig: Rig) -> None:
    for n in range(5):
        rig.put(n)
    rig.tier.close()
    usage = FilesTier(tmp_path).usage(9.0)
    assert (usage.evicted_blocks, usage.evicted_unread_bytes) == (2, 2 * rig.size)


def test_a_damaged_count_is_counted_anew(tmp_path: Path, rig: Rig) -> None:
    rig.put(0, 1)
    rig.tier.close()
    (tmp_path / "account").write_bytes(b"?" * 64)
    usage = FilesTier(tmp_path).usage(9.0)
    assert (usage.blocks, usage.used_bytes, usage.evicted_blocks) == (2, 2 * rig.size, 0)


ANOTHER = """
import sys
from kvferry.store.files import FilesTier
tier = FilesTier(sys.argv[1], capacity_bytes=int(sys.argv[2]), ghost_keys=1000)
keys = [bytes.fromhex(text) for text in sys.argv[3:]]
print(tier.find(keys, 9.0).hex())
"""


def test_another_process_knows_what_was_evicted(tmp_path: Path, rig: Rig, blocks: Blocks) -> None:
    for n in range(5):
        rig.put(n)
        rig.clock.advance(LATER)
    keys = [blocks.key(n).hex() for n in range(6)]
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER, str(tmp_path), str(3 * rig.size), *keys],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    expected = [Found.GHOST] * 2 + [Found.HELD] * 3 + [Found.ABSENT]
    assert bytes.fromhex(done.stdout.strip()) == bytes(expected)


def test_strangers_to_a_shared_directory_pass_no_more_often_than_stated(tmp_path: Path) -> None:
    keys = [hashlib.sha256(b"%d" % n).digest() for n in range(22_000)]
    tier = FilesTier(tmp_path, ghost_keys=1000)
    part = [memoryview(bytearray(b"x"))]
    for start in range(0, 2000, 100):
        batch = keys[start : start + 100]
        tier.put(batch, [part] * 100, 30.0)
        tier.drop(batch, 30.0)
    other = FilesTier(tmp_path)
    assert other.find(keys[1000:2000], 30.0) == bytes([Found.GHOST]) * 1000
    assert other.find(keys[2000:], 30.0).count(Found.GHOST) / 20_000 < 0.015
