"""What each policy is for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvferry.store.eviction import GDSF, LRU, POLICIES, S3FIFO, EvictionPolicy


def never(key: bytes) -> bool:
    return False


def insert(policy: EvictionPolicy, *keys: bytes, size: int = 100, worth: float | None = None) -> None:
    for key in keys:
        policy.insert(key, size, worth, None)


def evict(policy: EvictionPolicy, count: int) -> list[bytes]:
    gone = []
    for _ in range(count):
        key = policy.choose(never)
        assert key is not None
        policy.remove(key)
        gone.append(key)
    return gone


def numbered(count: int, letter: bytes = b"k") -> list[bytes]:
    return [letter + b"%d" % n for n in range(count)]


@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES.keys())
def test_an_empty_policy_has_nothing_to_give(make: Callable[[], EvictionPolicy]) -> None:
    assert make().choose(never) is None


@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES.keys())
def test_all_kept_is_nothing_to_give(make: Callable[[], EvictionPolicy]) -> None:
    policy = make()
    insert(policy, *numbered(5))
    assert policy.choose(lambda key: True) is None
    assert policy.choose(never) is not None


def test_lru_gives_what_was_used_longest_ago() -> None:
    policy = LRU()
    insert(policy, b"a", b"b", b"c")
    policy.touch(b"a", None)
    assert evict(policy, 3) == [b"b", b"c", b"a"]


def test_s3fifo_lets_a_scan_pass_by_what_is_used() -> None:
    policy = S3FIFO()
    used, scan = numbered(9, b"u"), numbered(200, b"s")
    insert(policy, *used)
    for key in (*used, *used):
        policy.touch(key, None)
    for key in scan:
        insert(policy, key)
        evict(policy, 1)
    assert set(evict(policy, 9)) == set(used)


def test_s3fifo_lets_a_newcomer_go_that_was_used_once() -> None:
    policy = S3FIFO()
    insert(policy, b"once", b"twice", b"never")
    policy.touch(b"once", None)
    for _ in range(2):
        policy.touch(b"twice", None)
    assert evict(policy, 3) == [b"once", b"never", b"twice"]


def test_s3fifo_believes_a_ghost_that_comes_back() -> None:
    policy = S3FIFO()
    insert(policy, *numbered(10))
    assert evict(policy, 1) == [b"k0"]
    insert(policy, b"k0")
    assert b"k0" not in evict(policy, 9)


def test_s3fifo_remembers_no_more_ghosts_than_keys() -> None:
    policy = S3FIFO()
    for key in numbered(1000):
        insert(policy, key)
        if key != b"k0":
            evict(policy, 1)
    assert len(policy._ghosts) <= 3


def test_gdsf_gives_what_saves_least_per_byte() -> None:
    policy = GDSF()
    insert(policy, b"dear", size=100, worth=1.0)
    insert(policy, b"large", size=1000, worth=1.0)
    insert(policy, b"cheap", size=100, worth=0.01)
    assert evict(policy, 3) == [b"cheap", b"large", b"dear"]


def test_gdsf_counts_uses() -> None:
    policy = GDSF()
    insert(policy, b"a", b"b", worth=1.0)
    policy.touch(b"a", None)
    assert evict(policy, 1) == [b"b"]


def test_gdsf_forgets_old_fame() -> None:
    policy = GDSF()
    insert(policy, b"star", worth=1.0)
    for _ in range(10):
        policy.touch(b"star", None)
    gone = []
    for key in numbered(50):
        insert(policy, key, worth=1.0)
        gone += evict(policy, 1)
    assert b"star" in gone


def test_gdsf_takes_unknown_worth_for_the_usual() -> None:
    policy = GDSF()
    insert(policy, b"poor", worth=0.1)
    insert(policy, b"rich", worth=10.0)
    insert(policy, b"unknown", worth=None)
    assert evict(policy, 3) == [b"poor", b"unknown", b"rich"]


def test_gdsf_heap_does_not_grow_with_uses() -> None:
    policy = GDSF()
    insert(policy, *numbered(10), worth=1.0)
    for _ in range(100):
        for key in numbered(10):
            policy.touch(key, None)
        evict(policy, 0)
        policy.choose(never)
    assert len(policy._heap) <= 20
