"""A memory tier gives memory back when it is short, says so, and grows back slowly."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvferry.clock import VirtualClock
from kvferry.store.memory import MemoryTier
from kvferry.store.memory.room import Room
from kvferry.store.tier import Found, Got, Put

from ..conftest import Blocks

BLOCK = 1 << 20
LIMIT = 100 * BLOCK
"""So that the limit is near with less than 10 blocks free."""
BLOCKS = 32


class Machine:
    """A limit whose use the test sets."""

    def __init__(self) -> None:
        self.free_blocks = 50

    def __call__(self) -> Room:
        return Room(LIMIT, LIMIT - self.free_blocks * BLOCK, "the test")


class Rig:
    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.machine, self.clock = Machine(), VirtualClock()
        self.resized: list[tuple[int, int]] = []
        self.evicted: list[tuple[int, bytes, int]] = []
        self.tier = MemoryTier(
            BLOCKS * BLOCK,
            slot_bytes=BLOCK,
            room=self.machine,
            watch_seconds=None,
            on_resized=lambda before, after: self.resized.append((before // BLOCK, after // BLOCK)),
            on_evicted=lambda keys, read, size: self.evicted.append((len(keys), read, size)),
            clock=self.clock,
        )

    def put(self, *numbers: int) -> bytes:
        part = memoryview(bytearray(BLOCK))
        return self.tier.put([self.blocks.key(n) for n in numbers], [[part] for _ in numbers], 9.0)

    def held(self, count: int = BLOCKS) -> list[int]:
        found = self.tier.find([self.blocks.key(n) for n in range(count)], 9.0)
        return [n for n, state in enumerate(found) if state == Found.HELD]

    def look(self, free_blocks: int) -> None:
        self.machine.free_blocks = free_blocks
        self.tier.relieve()


@pytest.fixture
def rig(blocks: Blocks) -> Rig:
    return Rig(blocks)


def test_near_the_limit_it_shrinks_by_what_is_missing(rig: Rig) -> None:
    for n in range(BLOCKS):
        rig.put(n)
    rig.look(free_blocks=5)
    assert rig.resized == [(32, 17)]
    assert rig.held() == list(range(15, 32))
    usage = rig.tier.usage(9.0)
    assert usage.reserved_bytes == 15 * BLOCK
    assert usage.effective_bytes == 17 * BLOCK


def test_what_goes_is_told_as_evicted(rig: Rig) -> None:
    for n in range(BLOCKS):
        rig.put(n)
    rig.look(free_blocks=5)
    assert sum(count for count, _, _ in rig.evicted) == 15
    assert sum(size for _, _, size in rig.evicted) == 15 * BLOCK
    assert rig.tier.find([rig.blocks.key(0)], 9.0) == bytes([Found.GHOST])


def test_the_memory_really_goes_back(rig: Rig) -> None:
    for n in range(BLOCKS):
        rig.put(n)
    before = resident_bytes()
    rig.look(free_blocks=0)
    assert before - resident_bytes() > 15 * BLOCK


def test_what_stays_is_whole(rig: Rig) -> None:
    for n in range(BLOCKS):
        part = memoryview(bytearray([n + 1]) * BLOCK)
        rig.tier.put([rig.blocks.key(n)], [[part]], 9.0)
    rig.look(free_blocks=5)
    for n in rig.held():
        into = memoryview(bytearray(BLOCK))
        assert rig.tier.get([rig.blocks.key(n)], [[into]], 9.0) == bytes([Got.OK])
        assert into == bytes([n + 1]) * BLOCK


def test_a_smaller_tier_still_takes_blocks(rig: Rig) -> None:
    for n in range(BLOCKS):
        rig.put(n)
    rig.look(free_blocks=5)
    assert rig.put(100, 101) == bytes([Put.STORED, Put.STORED])
    assert len(rig.held()) == 15


def test_it_grows_back_a_step_at_a_time(rig: Rig) -> None:
    for n in range(BLOCKS):
        rig.put(n)
    rig.look(free_blocks=5)
    rig.look(free_blocks=60)
    assert rig.resized == [(32, 17)]
    for _ in range(20):
        rig.clock.advance(10.0)
        rig.look(free_blocks=60)
    assert rig.resized[1:3] == [(17, 19), (19, 21)]
    assert rig.resized[-1] == (31, 32)
    assert rig.put(*range(200, 232)) == bytes([Put.STORED]) * 32


def test_it_may_shrink_to_nothing_and_says_full(rig: Rig) -> None:
    rig.put(0)
    rig.look(free_blocks=0)
    assert rig.resized == [(32, 0)]
    assert rig.put(1) == bytes([Put.FULL])
    assert rig.held() == []


def test_what_is_being_read_is_left_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvferry.store.memory import tier as module

    rig.put(0)
    copy = module.copy_parts

    def meanwhile(into: object, source: object) -> None:
        monkeypatch.setattr(module, "copy_parts", copy)
        rig.look(free_blocks=0)
        copy(into, source)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "copy_parts", meanwhile)
    into = memoryview(bytearray(b"\1" * BLOCK))
    assert rig.tier.get([rig.blocks.key(0)], [[into]], 9.0) == bytes([Got.OK])
    assert into == bytes(BLOCK)
    assert rig.resized == [(32, 1)]


def test_it_says_so_in_the_log(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for n in range(BLOCKS):
        rig.put(n)
    rig.look(free_blocks=5)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "tier memory may take 17 MiB now, not 32 MiB: 95 MiB of 100 MiB used by the test"
    )


def test_looking_at_an_empty_or_closed_tier_is_fine(blocks: Blocks) -> None:
    tier = MemoryTier(BLOCK, room=Machine(), watch_seconds=None)
    tier.relieve()
    tier.close()
    tier.relieve()


def test_a_thread_looks_and_ends_with_the_tier(blocks: Blocks) -> None:
    machine, looked = Machine(), threading.Event()
    machine.free_blocks = 0
    tier = MemoryTier(
        BLOCKS * BLOCK,
        room=machine,
        watch_seconds=0.01,
        on_resized=lambda before, after: looked.set(),
    )
    names = threads()
    tier.put([blocks.key(0)], [[memoryview(bytearray(BLOCK))]], 9.0)
    assert looked.wait(30)
    tier.close()
    for _ in range(3000):
        if threads() == names:
            break
        threading.Event().wait(0.01)
    assert threads() == names


def threads() -> int:
    return sum(thread.name == "kvferry-memory-limit" for thread in threading.enumerate())


def resident_bytes() -> int:
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("this system does not tell the resident memory of a process")
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


NEIGHBOUR = """
import sys, time
from pathlib import Path
from kvferry.store.memory import MemoryTier
from kvferry.store.memory.room import machine_room, process_room
from kvferry.store.tier import Found

limit = int(sys.argv[1])
read = process_room(limit) if sys.argv[2] == "setting" else machine_room
resized = []
tier = MemoryTier(limit, slot_bytes=1 << 20, room=read, watch_seconds=0.02,
                  on_resized=lambda before, after: resized.append(after))
part = [memoryview(bytearray(b"x" * (1 << 20)))]
keys = [n.to_bytes(32, "little") for n in range(limit >> 20)]
half = len(keys) // 2
for key in keys[:half]:
    tier.put([key], [part], 60.0)
ballast = []
for _ in range(half - 8):
    # The engine grows, a MiB at a time, at a pace that a watch every 20 ms can follow.
    ballast.append(bytearray(b"y" * (1 << 20)))
    time.sleep(0.002)
deadline = time.monotonic() + 30
while not resized and time.monotonic() < deadline:
    time.sleep(0.02)
held = tier.find(keys, 60.0).count(Found.HELD)
room = read()
print(len(resized) > 0, held < half, len(ballast) == half - 8, room.free_bytes > 0)
"""


def neighbour(limit_bytes: int, kind: str, group: Path | None = None) -> str:
    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(
        [sys.executable, "-c", NEIGHBOUR, str(limit_bytes), kind],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=enter,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_process_whose_engine_grows_stays_within_a_limit_that_is_set() -> None:
    resident_bytes()
    assert neighbour(256 << 20, "setting") == "True True True True"


def test_a_process_whose_engine_grows_stays_within_a_real_control_group() -> None:
    """Without the tier giving way, the kernel would kill it."""
    place = os.environ.get("KVFERRY_TEST_CGROUP")
    if place is None:
        pytest.skip("KVFERRY_TEST_CGROUP names no folder of control groups that tests may use")
    group = Path(place) / f"kvferry-{os.getpid()}"
    group.mkdir()
    try:
        name = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
        (group / name).write_text(str(256 << 20))
        assert neighbour(256 << 20, "group", group) == "True True True True"
    finally:
        group.rmdir()
