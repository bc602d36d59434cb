"""A tier that fails is left alone, longer each time, and one call finds out that it is back."""

from __future__ import annotations

import pytest

from kvferry.clock import VirtualClock
from kvferry.errors import ConfigError, TierTimeout, TierUnavailable
from kvferry.store.arrival import Arrived
from kvferry.store.backoff import BackedOff, State
from kvferry.store.memory import MemoryTier
from kvferry.store.tier import Got, Vector


class Moody(MemoryTier):
    """Raises or answers as told, and counts the calls that reach it."""

    mood: Exception | bytes | None = None
    calls = 0

    def find(self, keys: list[bytes], timeout_seconds: float) -> bytes:  # type: ignore[override]
        self.calls += 1
        if isinstance(self.mood, Exception):
            raise self.mood
        return super().find(keys, timeout_seconds)

    def get_telling(
        self, keys: list[bytes], into: list[Vector], timeout_seconds: float, arrived: Arrived
    ) -> bytes:  # type: ignore[override]
        self.calls += 1
        return (
            self.mood
            if isinstance(self.mood, bytes)
            else super().get_telling(keys, into, timeout_seconds, arrived)
        )


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def moody(clock: VirtualClock) -> Moody:
    return Moody(1 << 20, clock=clock)


@pytest.fixture
def tier(moody: Moody, clock: VirtualClock) -> BackedOff:
    return BackedOff(moody, clock, first_seconds=1.0, longest_seconds=8.0, jitter=0.0)


def fail(tier: BackedOff, moody: Moody) -> None:
    moody.mood = TierTimeout("no answer")
    with pytest.raises(TierTimeout):
        tier.find([b"k"], 1.0)


def test_rests_after_a_failure(tier: BackedOff, moody: Moody) -> None:
    fail(tier, moody)
    assert tier.state is State.RESTING
    with pytest.raises(TierUnavailable, match="left alone"):
        tier.find([b"k"], 1.0)
    assert moody.calls == 1


def test_get_answers_while_resting(tier: BackedOff, moody: Moody) -> None:
    fail(tier, moody)
    assert tier.get([b"k", b"l"], [[], []], 1.0) == bytes([Got.FAILED, Got.FAILED])
    assert moody.calls == 1


def test_comes_back_after_one_good_call(tier: BackedOff, moody: Moody, clock: VirtualClock) -> None:
    fail(tier, moody)
    moody.mood = None
    clock.advance(1.0)
    tier.find([b"k"], 1.0)
    assert tier.state is State.UP


def test_the_interval_doubles_up_to_the_longest(tier: BackedOff, moody: Moody, clock: VirtualClock) -> None:
    intervals = []
    for _ in range(6):
        fail(tier, moody)
        intervals.append(tier.resting_seconds)
        clock.advance(intervals[-1])
    assert intervals == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_only_one_call_probes(tier: BackedOff, moody: Moody, clock: VirtualClock) -> None:
    fail(tier, moody)
    clock.advance(1.0)
    moody.mood = None
    nested: list[bytes] = []
    whole = moody.find
    moody.find = lambda keys, timeout: (  # type: ignore[method-assign]
        nested.append(tier.get([b"k"], [[]], 1.0)),
        whole(keys, timeout),
    )[1]
    tier.find([b"k"], 1.0)
    assert nested == [bytes([Got.FAILED])]


@pytest.mark.parametrize(
    ("statuses", "state"),
    [
        (bytes([Got.OK, Got.FAILED]), State.RESTING),
        (bytes([Got.LATE, Got.LATE]), State.RESTING),
        (bytes([Got.OK, Got.LATE]), State.UP),
        (bytes([Got.ABSENT, Got.CORRUPT]), State.UP),
    ],
)
def test_what_counts_as_a_failed_read(tier: BackedOff, moody: Moody, statuses: bytes, state: State) -> None:
    moody.mood = statuses
    tier.get([b"k", b"l"], [[], []], 1.0)
    assert tier.state is state


def test_jitter_comes_from_the_seed(moody: Moody, clock: VirtualClock) -> None:
    def interval(seed: int) -> float:
        tier = BackedOff(moody, clock, first_seconds=1.0, jitter=0.25, seed=seed)
        fail(tier, moody)
        return tier.resting_seconds

    assert interval(1) == interval(1) != interval(2)
    assert all(0.75 <= interval(seed) <= 1.25 for seed in range(20))


def test_a_bug_of_the_caller_is_no_failure(tier: BackedOff, moody: Moody) -> None:
    moody.mood = ValueError("wrong argument")
    with pytest.raises(ValueError, match="wrong argument"):
        tier.find([b"k"], 1.0)
    assert tier.state is State.UP


def test_senseless_intervals_are_refused(moody: Moody, clock: VirtualClock) -> None:
    with pytest.raises(ConfigError, match="first <= longest"):
        BackedOff(moody, clock, first_seconds=2.0, longest_seconds=1.0)
