"""Commands against real tiers, and against tiers that fail, hang and lie."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from scripted import (
    KEYS,
    NAMESPACE,
    OTHER,
    SIZE,
    Bench,
    Blocks,
    Gate,
    Scripted,
    content,
    key,
    memory,
    timing_out,
)

from kvferry.cache.commands import Cancel, Drop, LoadDone, ProbeDone, Status, StoreDone
from kvferry.clock import VirtualClock
from kvferry.errors import ConfigError, TierUnavailable
from kvferry.executors import batches
from kvferry.executors.aliens import Aliens
from kvferry.keys.pool import pool_key
from kvferry.outcomes import Outcome
from kvferry.store.framed import FramedTier
from kvferry.store.tier import Found, Got, Kind, Put, Tier


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*tiers: Tier, **options: Any) -> Bench:
        made.append(Bench(tiers, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


Make = Callable[..., Bench]


def fill(tier: Tier, numbers: Sequence[int], namespace: bytes = NAMESPACE) -> None:
    framed = FramedTier(tier, namespace)
    framed.put([key(i) for i in numbers], [memoryview(content(i)) for i in numbers], 5.0)


# -- lookups -------------------------------------------------------------------------------------------


def test_a_block_counts_for_the_nearest_tier_that_holds_it(bench: Make) -> None:
    host, pool = memory(Kind.HOST), memory()
    fill(host, [0, 1])
    fill(pool, [1, 2])
    b = bench(host, pool)
    answer = b.run(b.probe())
    assert answer.status == bytes([16, 16, 17, 0, 0, 0, 0, 0])
    assert answer.seconds > 0.0


def test_what_a_tier_remembers_of_absent_blocks_is_told(bench: Make) -> None:
    pool = memory()
    fill(pool, [0])
    pool.drop([key(0)], 1.0)
    pool.lease([key(1)], b"another", 60.0, 1.0)
    b = bench(pool)
    assert b.run(b.probe(KEYS[:3])).status == bytes([Status.GHOST, Status.LEASED, Status.ABSENT])


def test_a_tier_that_fails_hides_nothing_of_the_next_and_is_named(bench: Make) -> None:
    host, pool = Scripted(memory(Kind.HOST)), memory()
    fill(pool, [0, 1])
    host.on["find"] = timing_out
    b = bench(host, pool)
    answer = b.run(b.probe(KEYS[:3]))
    assert answer.status == bytes([17, 17, Status.FAILED])
    assert "host: no answer" in answer.cause


def test_what_the_far_tier_says_does_not_hide_that_the_near_one_failed(bench: Make) -> None:
    host, pool = Scripted(memory(Kind.HOST)), memory()
    host.on["find"] = timing_out
    fill(pool, [0])
    pool.drop([key(0)], 1.0)
    b = bench(host, pool)
    assert b.run(b.probe(KEYS[:1])).status == bytes([Status.FAILED])


def test_a_lookup_without_time_left_bothers_no_tier(bench: Make) -> None:
    pool = Scripted(memory())
    b = bench(pool)
    answer = b.run(b.probe(KEYS[:2], timeout=0.0))
    assert answer.status == bytes([Status.FAILED]) * 2
    assert pool.calls == []


def test_each_tier_gets_what_is_left_of_the_time(bench: Make) -> None:
    host, pool = Scripted(memory(Kind.HOST)), Scripted(memory())
    b = bench(host, pool)
    b.run(b.probe(timeout=3.0))
    assert 0.0 < pool.timeouts[0] < host.timeouts[0] <= 3.0


def test_marks_of_blocks_count_only_for_who_asks_for_them(bench: Make) -> None:
    host, pool = memory(Kind.HOST), memory()
    b = bench(host, pool)
    b.run(b.store(0, 4, keys_only=True))
    assert b.run(b.probe(KEYS[:5], keys_only=True)).status == bytes([17, 17, 17, 17, 0])
    assert b.run(b.probe(KEYS[:5])).status == bytes(5)


# -- blocks of other namespaces --------------------------------------------------------------------------

SECRET = b"s" * 32
HASHES = [bytes([50 + i]) * 32 for i in range(4)]


def aliens(others: dict[bytes, str]) -> Aliens:
    return Aliens(SECRET, lambda ours: others, lambda: 0.0)


def alien_pool(namespace: bytes, numbers: Sequence[int]) -> Tier:
    pool = memory()
    keys = [pool_key(SECRET, namespace, HASHES[i]) for i in numbers]
    FramedTier(pool, namespace).put(keys, [memoryview(content(0))] * len(keys), 5.0)
    return pool


def test_blocks_under_another_namespace_are_alien_and_the_fields_are_named(bench: Make) -> None:
    b = bench(alien_pool(OTHER, [0, 1]), aliens=aliens({b"x" * 32: "dtype", OTHER: "weights"}))
    ours = [pool_key(SECRET, NAMESPACE, h) for h in HASHES]
    answer = b.run(b.probe(ours, hashes=HASHES))
    assert answer.status == bytes([Status.ALIEN, Status.ALIEN, 0, 0])
    assert answer.alien_fields == "weights"


def test_another_tenants_blocks_stay_out_of_reach(bench: Make) -> None:
    pool = memory()
    keys = [pool_key(b"t" * 32, OTHER, h) for h in HASHES]
    FramedTier(pool, OTHER).put(keys, [memoryview(content(0))] * 4, 5.0)
    b = bench(pool, aliens=aliens({OTHER: "tenant"}))
    assert b.run(b.probe([pool_key(SECRET, NAMESPACE, h) for h in HASHES], hashes=HASHES)).status == bytes(4)


def test_a_miss_asks_for_all_other_namespaces_in_one_round_trip(bench: Make) -> None:
    pool = Scripted(memory())
    b = bench(pool, aliens=aliens({bytes([i]) * 32: "weights" for i in range(6)}))
    b.run(b.probe(KEYS[:4], hashes=HASHES))
    assert pool.calls == ["find", "find"]


def test_failing_to_look_for_aliens_costs_nothing_of_what_was_found(bench: Make) -> None:
    pool = Scripted(memory())
    fill(pool, [0])
    calls = iter([None, timing_out])
    pool.on["find"] = lambda *args: (act := next(calls)) and act(*args)
    b = bench(pool, aliens=aliens({OTHER: "weights"}))
    answer = b.run(b.probe(KEYS[:2], hashes=HASHES))
    assert answer.status == bytes([16, 0])


# -- loads -----------------------------------------------------------------------------------------------


def test_a_load_writes_into_the_engines_memory(bench: Make) -> None:
    pool = memory()
    fill(pool, range(8))
    b, dest = bench(pool), Blocks()
    done = b.run(b.load(dest, 2, 7))
    assert (done.good, done.cause) == (5, None)
    assert dest.right(2, 7)
    assert not dest.right(0, 1)
    assert done.legs.bytes == 5 * SIZE
    assert done.legs.wire_seconds > 0.0
    assert done.legs.in_flight == 1.0


def test_a_load_stops_at_the_first_block_that_is_gone(bench: Make) -> None:
    pool = memory()
    fill(pool, [0, 1, 3, 4])
    b = bench(pool)
    done = b.run(b.load(Blocks(), 0, 5))
    assert (done.good, done.cause) == (2, Outcome.EVICTED)
    assert "block 2 absent" in done.detail


def test_a_flipped_byte_is_corrupt(bench: Make) -> None:
    pool = Scripted(memory())
    fill(pool, range(8))

    def flip(keys: Sequence[bytes], into: Sequence[Any], timeout: float) -> bytes:
        got = pool.tier.get(keys, into, timeout)
        into[3][1][17] ^= 1
        return got

    pool.on["get"] = flip
    b = bench(pool)
    done = b.run(b.load(Blocks()))
    assert (done.good, done.cause) == (3, Outcome.CORRUPT)


def test_a_frame_of_another_namespace_is_incompatible(bench: Make) -> None:
    pool = memory()
    fill(pool, [0])
    fill(pool, [1], OTHER)
    b = bench(pool)
    done = b.run(b.load(Blocks(), 0, 2))
    assert (done.good, done.cause) == (1, Outcome.INCOMPATIBLE)


@pytest.mark.parametrize(("got", "cause"), [(Got.FAILED, Outcome.FAILED), (Got.LATE, Outcome.LATE)])
def test_what_a_tier_says_of_a_block_is_the_cause(bench: Make, got: Got, cause: Outcome) -> None:
    pool = Scripted(memory())
    pool.on["get"] = lambda keys, *args: bytes([got]) * len(keys)
    b = bench(pool)
    assert b.run(b.load(Blocks())).cause is cause


def test_batches_that_arrived_before_a_failure_are_good(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 2 * SIZE)
    pool = Scripted(memory())
    fill(pool, range(8))
    calls = iter([None, None, timing_out])
    pool.on["get"] = lambda *args: (act := next(calls)) and act()
    b, dest = bench(pool), Blocks()
    done = b.run(b.load(dest))
    assert (done.good, done.cause) == (4, Outcome.FAILED)
    assert dest.right(0, 4)


def test_a_cancelled_load_stops_between_batches_and_is_answered_once(
    bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", SIZE)
    pool, gate = Scripted(memory()), Gate()
    fill(pool, range(8))
    pool.on["get"] = gate
    b = bench(pool)
    load = b.load(Blocks())
    b.submit(load)
    gate.wait_until_entered()
    b.submit(Cancel(load.op))
    gate.open()
    done = b.answer()
    assert (done.op, done.good, done.cause, done.detail) == (load.op, 1, Outcome.LATE, "cancelled")
    assert b.answers.empty()


def test_a_load_that_waits_behind_a_hung_one_is_answered_as_soon_as_it_is_cancelled(bench: Make) -> None:
    pool, gate = Scripted(memory()), Gate()
    pool.on["get"] = gate
    b = bench(pool, load_threads=1)
    hung, waiting = b.load(Blocks()), b.load(Blocks())
    b.submit(hung)
    gate.wait_until_entered()
    b.submit(waiting, Cancel(waiting.op))
    done = b.answer()
    assert (done.op, done.good, done.cause) == (waiting.op, 0, Outcome.LATE)
    gate.open()
    assert b.answer().op == hung.op
    assert pool.calls.count("get") == 1, "what was cancelled is not begun"


def test_a_hung_load_delays_neither_lookups_nor_stores(bench: Make) -> None:
    pool, gate = Scripted(memory()), Gate()
    pool.on["get"] = gate
    b = bench(pool, load_threads=1)
    b.submit(b.load(Blocks()))
    gate.wait_until_entered()
    assert isinstance(b.run(b.probe()), ProbeDone)
    assert isinstance(b.run(b.store()), StoreDone)
    gate.open()
    assert isinstance(b.answer(), LoadDone)


def test_a_load_whose_time_is_over_before_it_begins_is_late_and_bothers_no_tier(bench: Make) -> None:
    pool = Scripted(memory())
    b = bench(pool)
    assert b.run(b.load(Blocks(), timeout=0.0)).cause is Outcome.LATE
    assert pool.calls == []


def test_a_deadline_between_batches_is_kept(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", SIZE)
    pool, clock = Scripted(memory()), VirtualClock()
    fill(pool, range(8))
    pool.on["get"] = lambda *args: clock.advance(0.06)
    b = bench(pool, clock=clock)
    done = b.run(b.load(Blocks(), timeout=0.1))
    assert (done.good, done.cause, done.detail) == (2, Outcome.LATE, "deadline passed")


def test_loads_side_by_side_know_of_each_other(bench: Make) -> None:
    pool, gate = Scripted(memory()), Gate()
    fill(pool, range(8))
    pool.on["get"] = gate
    b = bench(pool)
    b.submit(b.load(Blocks()), b.load(Blocks()))
    gate.wait_until_entered()
    gate.wait_until_entered()
    gate.open()
    shares = sorted([b.answer().legs.in_flight, b.answer().legs.in_flight])
    assert shares[-1] >= 1.5


# -- the pool's cap on loads -------------------------------------------------------------------------------


def test_the_pools_cap_holds_across_replicas(bench: Make) -> None:
    shared = memory()
    fill(shared, range(8))
    gate = Gate()
    slow = Scripted(shared)
    slow.on["get"] = gate
    first = bench(slow, holder=b"one", pool_loads=1)
    second = bench(shared, holder=b"two", pool_loads=1)
    first.submit(first.load(Blocks()))
    gate.wait_until_entered()
    done = second.run(second.load(Blocks()))
    assert (done.good, done.cause) == (0, Outcome.DECLINED)
    gate.open()
    assert first.answer().good == 8
    assert second.run(second.load(Blocks())).good == 8, "the slot was given back"


def test_under_the_cap_nobody_is_declined(bench: Make) -> None:
    pool = memory()
    fill(pool, range(8))
    b = bench(pool, pool_loads=4, load_threads=4)
    b.submit(*[b.load(Blocks()) for _ in range(40)])
    assert [b.answer().cause for _ in range(40)] == [None] * 40


def test_the_cap_is_the_pools_alone(bench: Make) -> None:
    host = Scripted(memory(Kind.HOST))
    fill(host, range(8))
    b = bench(host, pool_loads=1)
    assert b.run(b.load(Blocks())).good == 8
    assert "lease" not in host.calls


def test_a_cap_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="pool_loads must be at least 1"):
        Bench([memory()], pool_loads=0)


# -- stores ------------------------------------------------------------------------------------------------


def test_a_store_reaches_every_tier_and_counts_the_last(bench: Make) -> None:
    host, pool = memory(Kind.HOST), memory()
    fill(pool, [0, 1])
    b = bench(host, pool)
    done = b.run(b.store())
    assert (done.stored, done.held, done.stored_bytes, done.cause) == (6, 2, 6 * SIZE, None)
    for tier in (host, pool):
        assert tier.find(KEYS, 1.0) == bytes([Found.HELD]) * 8


def test_what_is_stored_can_be_loaded(bench: Make) -> None:
    b, dest = bench(memory()), Blocks()
    b.run(b.store(2, 6))
    assert b.run(b.load(dest, 2, 6)).good == 4
    assert dest.right(2, 6)


def test_a_near_tier_that_fails_keeps_nothing_from_the_pool(bench: Make) -> None:
    host, pool = Scripted(memory(Kind.HOST)), memory()
    host.on["put"] = timing_out
    b = bench(host, pool)
    assert b.run(b.store()).stored == 8


def test_a_pool_that_fails_is_the_cause(bench: Make) -> None:
    pool = Scripted(memory())
    pool.on["put"] = timing_out
    b = bench(memory(Kind.HOST), pool)
    done = b.run(b.store())
    assert (done.stored, done.cause) == (0, Outcome.FAILED)


def test_blocks_that_another_replica_is_publishing_are_left_to_it(bench: Make) -> None:
    pool = memory()
    pool.lease(KEYS[:3], b"another", 60.0, 1.0)
    b = bench(pool)
    assert b.run(b.store()).stored == 5


def test_leases_are_given_back(bench: Make) -> None:
    pool = memory()
    b = bench(pool)
    b.run(b.store())
    assert pool.lease(KEYS, b"another", 60.0, 1.0) == b"\x01" * 8


def test_leases_are_given_back_when_the_tier_fails(bench: Make) -> None:
    pool = Scripted(memory())
    pool.on["put"] = timing_out
    b = bench(pool)
    b.run(b.store())
    assert pool.tier.lease(KEYS, b"another", 60.0, 1.0) == b"\x01" * 8


def test_a_full_pool_ends_the_store_where_it_is_full(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", SIZE)
    pool = Scripted(memory())
    calls = iter([None, None, b"" + bytes([Put.FULL])])
    pool.on["put"] = lambda *args: next(calls)
    b = bench(pool)
    done = b.run(b.store())
    assert (done.stored, done.cause) == (2, Outcome.FAILED)


def test_only_blocks_that_somebody_asked_for_before_are_stored(bench: Make) -> None:
    pool = memory()
    one, other = bench(pool, holder=b"one"), bench(pool, holder=b"other")
    assert one.run(one.store(touched_only=True)).stored == 0
    assert other.run(other.store(0, 5, touched_only=True)).stored == 5


def test_publications_in_flight_are_bounded_in_bytes(bench: Make) -> None:
    pool, gate = Scripted(memory()), Gate()
    pool.on["put"] = gate
    b = bench(pool, publish_bytes=10 * SIZE)
    b.submit(b.store())
    gate.wait_until_entered()
    assert b.run(b.store()).cause is Outcome.DECLINED
    gate.open()
    assert b.answer().stored == 8


def test_one_publication_may_be_larger_than_the_bound(bench: Make) -> None:
    b = bench(memory(), publish_bytes=SIZE)
    assert b.run(b.store()).stored == 8


def test_a_cancelled_store_stops_between_batches(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", SIZE)
    pool, gate = Scripted(memory()), Gate()
    pool.on["put"] = gate
    b = bench(pool)
    store = b.store()
    b.submit(store)
    gate.wait_until_entered()
    b.submit(Cancel(store.op))
    gate.open()
    done = b.answer()
    assert (done.stored, done.cause) == (1, Outcome.LATE)


# -- always one answer ---------------------------------------------------------------------------------------


class Surprise(Exception):
    """What no tier should raise."""


def surprise(*args: Any) -> None:
    raise Surprise("boo")


@pytest.mark.parametrize("error", [surprise, timing_out])
@pytest.mark.parametrize("operation", ["find", "get", "put", "lease"])
def test_whatever_a_tier_raises_there_is_one_answer(
    bench: Make, operation: str, error: Callable[..., None]
) -> None:
    pool = Scripted(memory())
    fill(pool, range(4))
    pool.on[operation] = error
    b = bench(pool, pool_loads=2)
    commands = [b.probe(), b.load(Blocks()), b.store()]
    b.submit(*commands)
    assert sorted(b.answer().op for _ in commands) == [c.op for c in commands]
    assert b.answers.empty()


def test_an_engine_that_lends_no_memory_gets_an_answer(bench: Make) -> None:
    class Gone(Blocks):
        def views(self, start: int, stop: int) -> Sequence[memoryview]:
            raise Surprise("freed")

    b = bench(memory())
    done = b.run(b.load(Gone()))
    assert (done.good, done.cause) == (0, Outcome.FAILED)
    assert "freed" in done.detail
    assert b.run(b.store(0, 4, Gone())).cause is Outcome.FAILED


def test_a_namespace_that_is_none_gets_an_answer(bench: Make) -> None:
    b = bench(memory())
    assert b.run(b.store(namespace=b"short")).cause is Outcome.FAILED


def test_many_operations_are_answered_once_each(bench: Make) -> None:
    pool = memory()
    b = bench(pool)
    commands = []
    for i in range(100):
        commands.append([b.probe(), b.load(Blocks()), b.store()][i % 3])
        b.submit(commands[-1])
        if i % 5 == 0:
            b.submit(Cancel(commands[-1].op))
    answered = [b.answer().op for _ in commands]
    assert sorted(answered) == sorted(c.op for c in commands)
    assert b.answers.empty()


def test_a_cancel_for_what_was_answered_is_ignored(bench: Make) -> None:
    b = bench(memory())
    probe = b.probe()
    b.run(probe)
    b.submit(Cancel(probe.op), Cancel(12345))
    assert b.answers.empty()


def test_bad_blocks_are_dropped_without_an_answer(bench: Make) -> None:
    pool = memory()
    fill(pool, range(4))
    b = bench(pool)
    b.submit(Drop(KEYS, 1, 2, 0, Outcome.CORRUPT))
    done = threading.Event()
    for _ in range(500):
        if pool.find([key(1)], 1.0) == bytes([Found.ABSENT]):
            break
        done.wait(0.01)
    assert pool.find(KEYS[:3], 1.0) == bytes([Found.HELD, Found.ABSENT, Found.HELD])
    assert b.answers.empty()


def test_after_closing_what_waited_and_what_comes_is_answered(bench: Make) -> None:
    pool, gate = Scripted(memory()), Gate()
    pool.on["get"] = gate
    b = bench(pool, load_threads=1)
    hung, waiting = b.load(Blocks()), b.load(Blocks())
    b.submit(hung)
    gate.wait_until_entered()
    b.submit(waiting)
    b.close()
    assert b.answer().op == waiting.op
    later = b.probe()
    b.submit(later, Drop(KEYS, 0, 1, 0, Outcome.CORRUPT))
    assert b.answer().status == bytes([Status.FAILED]) * 8
    gate.open()
    assert b.answer().op == hung.op


def test_a_tier_that_is_gone_says_so_in_words(bench: Make) -> None:
    def refuse(*args: Any) -> None:
        raise TierUnavailable("connection refused")

    pool = Scripted(memory())
    pool.on["find"] = pool.on["get"] = refuse
    b = bench(pool)
    assert "connection refused" in b.run(b.probe()).cause
    assert "connection refused" in b.run(b.load(Blocks())).detail
