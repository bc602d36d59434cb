"""Threads that put, read, drop and lower the limit at once: no block is mixed up, every count is right."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from kvferry.store.eviction import POLICIES, EvictionPolicy
from kvferry.store.memory import MemoryTier
from kvferry.store.memory.room import Room
from kvferry.store.tier import Got

from ..conftest import Blocks

SIZE = 16_000
LIMIT = 1 << 34
ROUNDS = 150


class Traffic:
    """Seeded calls to one tier from several threads; remembers what was read and was not what was put."""

    def __init__(self, make: Callable[[], EvictionPolicy], blocks: Blocks) -> None:
        self.used = 0
        self.tier = MemoryTier(
            100 * SIZE, policy=make, room=lambda: Room(LIMIT, self.used, "a test"), watch_seconds=None
        )
        self.wrong: list[bytes] = []
        self.failed: list[Exception] = []
        self._blocks = blocks

    def run(self, threads: int) -> None:
        running = [threading.Thread(target=self._work, args=(seed,)) for seed in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    def _work(self, seed: int) -> None:
        draw = random.Random(seed)
        try:
            for _ in range(ROUNDS):
                chain = 20 * draw.randrange(12)
                self._turn(draw, [self._blocks.key(chain + n) for n in range(draw.randrange(1, 20))])
        except Exception as error:
            self.failed.append(error)

    def _turn(self, draw: random.Random, keys: list[bytes]) -> None:
        tier, turn = self.tier, draw.random()
        if turn < 0.45:
            tier.put(keys, [[value(key)] for key in keys], 5.0)
        elif turn < 0.9:
            into = [memoryview(bytearray(SIZE)) for _ in keys]
            statuses = tier.get(keys, [[part] for part in into], 5.0)
            got = zip(keys, into, statuses, strict=True)
            self.wrong += [key for key, part, status in got if status == Got.OK and part != value(key)]
        elif turn < 0.95:
            tier.drop(keys, 5.0)
        else:
            self.used = LIMIT - draw.choice([0, 10 * SIZE, LIMIT])
            tier.relieve()


def value(key: bytes) -> memoryview:
    return memoryview(key * (SIZE // len(key)))


@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES.keys())
def test_what_is_read_is_what_was_put_and_counts_are_right(
    make: Callable[[], EvictionPolicy], blocks: Blocks
) -> None:
    traffic = Traffic(make, blocks)
    traffic.run(threads=3)
    entries = list(traffic.tier.scan(1.0))
    usage = traffic.tier.usage(1.0)
    traffic.tier.close()
    assert not traffic.failed
    assert not traffic.wrong
    assert (usage.blocks, usage.used_bytes) == (len(entries), len(entries) * SIZE)
    assert usage.unread_bytes == sum(SIZE for entry in entries if not entry.read)
