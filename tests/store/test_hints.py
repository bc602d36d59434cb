"""Hints reach a tier that takes them, and leave every other one alone."""

from __future__ import annotations

from typing import Any

import pytest

from kvferry.store.hints import Hints, put_hinted
from kvferry.store.memory import MemoryTier
from kvferry.store.tier import Put, Tier
from kvferry.store.wrapper import Wrapper

KEYS = [b"a" * 32, b"b" * 32, b"c" * 32, b"d" * 32]


class Deaf(Wrapper):
    def put(
        self, keys: Any, values: Any, timeout_seconds: float, *, ttl_seconds: float | None = None
    ) -> bytes:
        return self.tier.put(keys, values, timeout_seconds, ttl_seconds=ttl_seconds)


def put(tier: Tier, hints: Hints | None) -> bytes:
    return put_hinted(tier, KEYS[:1], [[memoryview(b"x")]], 9.0, hints=hints)


def test_a_tier_without_the_word_is_asked_without() -> None:
    tier = MemoryTier(100, room=None)
    assert put(Deaf(tier), Hints(worth_seconds=[1.0])) == bytes([Put.STORED])


def test_no_hints_are_no_word() -> None:
    assert put(MemoryTier(100, room=None), None) == bytes([Put.STORED])


def test_worth_decides_where_the_policy_weighs_it() -> None:
    tier = MemoryTier(2, slot_bytes=1, policy="gdsf", room=None)
    for key, worth in zip(KEYS, (5.0, 0.1, 1.0), strict=False):
        put_hinted(tier, [key], [[memoryview(b"x")]], 9.0, hints=Hints(worth_seconds=[worth]))
    assert tier.find(KEYS[:3], 9.0) == bytes([4, 1, 4])


def test_what_a_batch_continues_stays_as_long_as_it_does() -> None:
    tier = MemoryTier(3, slot_bytes=1, room=None)
    for key, after in zip(KEYS[:3], (None, *KEYS), strict=False):
        put_hinted(tier, [key], [[memoryview(b"x")]], 9.0, hints=Hints(after=after))
    put_hinted(tier, KEYS[3:], [[memoryview(b"x")]], 9.0)
    assert tier.find(KEYS, 9.0) == bytes([4, 4, 1, 4])


@pytest.mark.parametrize(
    ("start", "stop", "worth", "after"),
    [(0, 2, [1.0, 2.0], b"z"), (2, 4, [3.0, 4.0], KEYS[1]), (1, 1, [], KEYS[0])],
)
def test_part_of_a_batch_continues_what_is_before_it(
    start: int, stop: int, worth: list[float], after: bytes
) -> None:
    part = Hints(worth_seconds=[1.0, 2.0, 3.0, 4.0], after=b"z", idle_seconds=9.0).part(KEYS, start, stop)
    assert part == Hints(worth_seconds=worth, after=after, idle_seconds=9.0)
