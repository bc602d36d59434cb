"""No more than the limit at once; the rest wait within their time."""

from __future__ import annotations

import threading

import pytest

from kvferry.clock import MonotonicClock
from kvferry.errors import ConfigError, TierTimeout
from kvferry.store.arrival import Arrived
from kvferry.store.bounded import Bounded
from kvferry.store.memory import MemoryTier
from kvferry.store.tier import Got, Vector


class Gate(MemoryTier):
    """Reads wait until opened."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.open, self.entered = threading.Event(), threading.Event()

    def get_telling(
        self, keys: list[bytes], into: list[Vector], timeout_seconds: float, arrived: Arrived
    ) -> bytes:  # type: ignore[override]
        self.entered.set()
        self.open.wait(10)
        return bytes([Got.OK]) * len(keys)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_the_second_of_one_place_is_late(gate: Gate) -> None:
    tier = Bounded(gate, 1, MonotonicClock())
    answers: list[bytes] = []
    first = threading.Thread(target=lambda: answers.append(tier.get([b"k"], [[]], 10)))
    first.start()
    gate.entered.wait(10)
    assert tier.get([b"k"], [[]], 0.01) == bytes([Got.LATE])
    with pytest.raises(TierTimeout):
        tier.put([b"k"], [[]], 0.01)
    gate.open.set()
    first.join()
    assert answers == [bytes([Got.OK])]


def test_places_come_back(gate: Gate) -> None:
    tier = Bounded(gate, 1, MonotonicClock())
    gate.open.set()
    assert [tier.get([b"k"], [[]], 1) for _ in range(3)] == [bytes([Got.OK])] * 3


def test_no_place_at_all_is_refused(gate: Gate) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        Bounded(gate, 0, MonotonicClock())
