"""Tiers are asked what they hold when somebody looks."""

from __future__ import annotations

import pytest

from kvferry.clock import VirtualClock
from kvferry.errors import TierUnavailable
from kvferry.store.backoff import BackedOff
from kvferry.store.memory import MemoryTier
from kvferry.store.tier import Kind, Usage
from kvferry.telemetry import Metrics
from kvferry.telemetry.tiers import record_tiers


class Heard(Metrics):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.states: dict[str, tuple[bool, float]] = {}
        self.usages: dict[str, tuple[int | None, int | None]] = {}

    def tier_state(self, tier: Kind, *, up: bool, backoff_seconds: float = 0.0) -> None:
        self.states[tier] = (up, backoff_seconds)

    def tier_usage(self, tier: Kind, *, capacity_bytes: int | None, used_bytes: int | None) -> None:
        self.usages[tier] = (capacity_bytes, used_bytes)


class Gone(MemoryTier):
    """Answers no question while `gone`."""

    gone = True

    def usage(self, timeout_seconds: float) -> Usage:
        if self.gone:
            raise TierUnavailable("gone")
        return super().usage(timeout_seconds)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_a_tier_that_answers_is_up(heard: Heard) -> None:
    tier = MemoryTier(1000, slot_bytes=10)
    tier.put([b"k" * 32], [[memoryview(b"x" * 10)]], 1.0)
    record_tiers(heard, [tier], 1.0)
    assert heard.states == {"host": (True, 0.0)}
    assert heard.usages == {"host": (1000, 10)}


def test_a_tier_that_does_not_answer_is_down(heard: Heard) -> None:
    record_tiers(heard, [Gone(1000)], 1.0)
    assert heard.states == {"host": (False, 0.0)}
    assert heard.usages == {"host": (None, None)}


def test_the_question_begins_a_back_off(heard: Heard) -> None:
    record_tiers(heard, [BackedOff(Gone(1000), VirtualClock(), first_seconds=2.0, jitter=0.0)], 1.0)
    assert heard.states == {"host": (False, 2.0)}


def test_the_question_after_a_back_off_finds_the_tier_again(heard: Heard) -> None:
    clock, inner = VirtualClock(), Gone(1000)
    tier = BackedOff(inner, clock, first_seconds=2.0)
    record_tiers(heard, [tier], 1.0)
    inner.gone = False
    clock.advance(3.0)
    record_tiers(heard, [tier], 1.0)
    assert heard.states == {"host": (True, 0.0)}


def test_one_tier_that_is_gone_hides_no_other(heard: Heard) -> None:
    record_tiers(heard, [Gone(1000), MemoryTier(500, kind=Kind.POOL)], 1.0)
    assert heard.usages["pool"] == (500, 0)
