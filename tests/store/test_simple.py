"""A tier of four methods: what it makes of a store that is full, gone, or holds what is not ours."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from kvferry.clock import Clock, VirtualClock
from kvferry.errors import KvferryError, TierFull, TierTimeout, TierUnavailable
from kvferry.store.simple import SimpleTier
from kvferry.store.tier import Found, Got, Kind, Put, Tier, Vector
from kvferry.testing.tiers import TierSuite

KEYS = [b"a" * 32, b"b" * 32, b"c" * 32]


class DictTier(SimpleTier):
    """Whole values in a dictionary; raises what a test puts into `trouble` after `quiet` more calls."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__("dict", Kind.HOST, clock=clock, ghost_keys=1000)
        self.values: dict[str, bytes] = {}
        self.trouble: KvferryError | None = None
        self.quiet = 0

    def _check(self) -> None:
        self.quiet -= 1
        if self.trouble is not None and self.quiet < 0:
            raise self.trouble

    def read(self, name: str, limit: int | None) -> bytes | None:
        self._check()
        value = self.values.get(name)
        return value if value is None else value[:limit]

    def write(self, name: str, value: bytes, *, if_absent: bool) -> bool:
        self._check()
        if if_absent:
            return self.values.setdefault(name, value) is value
        self.values[name] = value
        return True

    def delete(self, name: str) -> bool:
        self._check()
        return self.values.pop(name, None) is not None

    def names(self, prefix: str) -> Iterable[tuple[str, int]]:
        self._check()
        return [(name, len(value)) for name, value in list(self.values.items()) if name.startswith(prefix)]


class TestDictTier(TierSuite):
    capacity_enforced = False

    def open_tier(
        self, place: Path, *, capacity_bytes: int | None = None, clock: Clock | None = None
    ) -> Tier:
        return DictTier(clock)


@pytest.fixture
def tier() -> DictTier:
    return DictTier(VirtualClock())


def part() -> Vector:
    return [memoryview(bytearray(b"x" * 10))]


def put(tier: SimpleTier, keys: list[bytes] = KEYS) -> bytes:
    return tier.put(keys, [part() for _ in keys], 9.0)


def get(tier: SimpleTier) -> bytes:
    return tier.get(KEYS, [part() for _ in KEYS], 9.0)


def test_no_room_is_full(tier: DictTier) -> None:
    tier.trouble = TierFull("full")
    assert put(tier) == bytes([Put.FULL]) * 3


def test_a_store_that_is_gone_raises(tier: DictTier) -> None:
    tier.trouble = TierUnavailable("gone")
    with pytest.raises(TierUnavailable):
        put(tier)
    with pytest.raises(TierUnavailable):
        tier.find(KEYS, 9.0)


def test_a_store_that_goes_meanwhile_keeps_what_was_stored(tier: DictTier) -> None:
    tier.trouble, tier.quiet = TierUnavailable("gone"), 3
    assert put(tier) == bytes([Put.STORED, Put.FAILED, Put.FAILED])


def test_reading_answers_for_each_key(tier: DictTier) -> None:
    put(tier)
    tier.trouble, tier.quiet = TierUnavailable("gone"), 1
    assert get(tier) == bytes([Got.OK, Got.FAILED, Got.FAILED])
    tier.trouble, tier.quiet = TierTimeout("slow"), 1
    assert get(tier) == bytes([Got.OK, Got.LATE, Got.LATE])


def test_a_value_that_is_not_ours_is_corrupt(tier: DictTier) -> None:
    put(tier)
    tier.values[f"block/{KEYS[1].hex()}"] = b"short"
    assert get(tier) == bytes([Got.OK, Got.CORRUPT, Got.OK])


def test_what_another_process_held_is_known_once_it_was_seen(tier: DictTier) -> None:
    put(tier)
    other = DictTier()
    other.values = tier.values
    assert other.find(KEYS[:1], 9.0) == bytes([Found.HELD])
    tier.drop(KEYS, 9.0)
    assert other.find(KEYS, 9.0) == bytes([Found.GHOST, Found.ABSENT, Found.ABSENT])
