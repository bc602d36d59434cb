"""Host memory of workers, seen from another process. Needs no vLLM."""

from __future__ import annotations

import pytest

from kvferry.engines.vllm.mirror import HostChanges, MirroredTier, ToldTier
from kvferry.store.memory import MemoryTier
from kvferry.store.tier import Found

A, B, C = (bytes([n]) * 32 for n in (1, 2, 3))
VALUE = [memoryview(b"x" * 100)]


class Pair:
    """A worker's memory for two blocks, and what the scheduler knows of it."""

    def __init__(self) -> None:
        self.changes = HostChanges()
        heard = self.changes.telling(lambda keys, read, unread_bytes: None)
        self.worker = ToldTier(MemoryTier(256, slot_bytes=128, on_evicted=heard), self.changes)
        self.scheduler = MirroredTier()

    def step(self) -> None:
        self.scheduler.apply(self.changes.take())

    def found(self, *keys: bytes) -> list[Found]:
        return [Found(byte) for byte in self.scheduler.find(list(keys), 1.0)]


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_what_a_worker_stores_is_found_after_the_step(pair: Pair) -> None:
    pair.worker.put([A], [VALUE], 1.0)
    assert pair.found(A, B) == [Found.ABSENT, Found.ABSENT]
    pair.step()
    assert pair.found(A, B) == [Found.HELD, Found.ABSENT]


def test_what_was_evicted_is_known_to_have_been_there(pair: Pair) -> None:
    for key in (A, B, C):
        pair.worker.put([key], [VALUE], 1.0)
        pair.step()
    found = pair.found(A, B, C)
    assert found.count(Found.HELD) == 2
    assert found.count(Found.GHOST) == 1
    assert found[2] is Found.HELD


def test_what_was_dropped_is_not_found(pair: Pair) -> None:
    pair.worker.put([A], [VALUE], 1.0)
    pair.step()
    pair.worker.drop([A], 1.0)
    pair.step()
    assert pair.found(A) == [Found.GHOST]


def test_a_key_that_came_and_went_within_a_step_is_gone(pair: Pair) -> None:
    pair.worker.put([A], [VALUE], 1.0)
    pair.worker.drop([A], 1.0)
    pair.step()
    assert pair.found(A) == [Found.GHOST]


def test_what_the_scheduler_drops_is_not_found_again(pair: Pair) -> None:
    pair.worker.put([A], [VALUE], 1.0)
    pair.step()
    assert pair.scheduler.drop([A], 1.0) == 1
    assert pair.found(A) == [Found.ABSENT]
