"""Orders of events that have broken a machine like this one, or could."""

from __future__ import annotations

import pytest
from rig import BLOCK, BLOCK_BYTES, HOST, POOL, Rig, chain

from kvferry.cache.commands import Again, Cancel, Free, Legs, Load, LoadDone, Loaded, Status
from kvferry.cache.requests import Compute, LoadTo, Wait
from kvferry.gate.facts import Reason
from kvferry.outcomes import Outcome

KEYS = chain(8)
TAIL = {Outcome.PARTIAL_BLOCK: 5}


def held(blocks: int = 8, tier: int = POOL) -> bytes:
    return bytes([tier]) * blocks


# -- lookups -------------------------------------------------------------------------------------------


def test_a_lookup_that_is_late_is_computed_and_its_answer_ignored() -> None:
    rig = Rig(probe_seconds=0.25, grace_seconds=0.25)
    probe = rig.arrive("a", KEYS)
    rig.tick(0.49)
    assert isinstance(rig.ask("a"), Wait)
    rig.tick(0.02)
    assert isinstance(rig.ask("a"), Compute)
    rig.probed(probe, held())
    assert isinstance(rig.ask("a"), Compute)
    account = rig.finish("a", computed=8 * BLOCK + 5)
    assert account.ledger == {Outcome.LATE: 8 * BLOCK, **TAIL}
    assert account.fallback is Outcome.LATE


def test_a_late_lookup_beside_a_local_hit_inside_a_block_books_each_token_once() -> None:
    rig = Rig()
    rig.arrive("a", KEYS)
    rig.tick(1.0)
    rig.ask("a", 2 * BLOCK + 7)
    account = rig.finish("a", computed=6 * BLOCK - 2)
    assert account.ledger == {Outcome.DEVICE_HIT: 2 * BLOCK + 7, Outcome.LATE: 6 * BLOCK - 7, **TAIL}


def test_a_lookup_is_not_waited_for_beyond_the_requests_own_deadline() -> None:
    rig = Rig(probe_seconds=10.0, grace_seconds=0.0)
    probe = rig.arrive("a", KEYS, deadline_seconds=0.1)
    assert probe.timeout_seconds == pytest.approx(0.1)
    rig.tick(0.11)
    assert isinstance(rig.ask("a"), Compute)


def test_a_tier_that_does_not_answer_is_no_miss() -> None:
    rig = Rig()
    rig.known("a", KEYS, held(2) + bytes([Status.FAILED]) * 6)
    assert rig.ask("a") == LoadTo(2)
    (load,) = rig.begin("a", 2)
    rig.load_done(load)
    assert rig.computed("a", 8 * BLOCK) == [], "what may be there is not written again"
    account = rig.finish("a", computed=6 * BLOCK + 5)
    assert account.ledger == {Outcome.POOL_HIT: 2 * BLOCK, Outcome.FAILED: 6 * BLOCK, **TAIL}
    assert account.fallback is Outcome.FAILED


def test_blocks_of_another_namespace_are_booked_with_the_fields_that_differ() -> None:
    from kvferry.cache.commands import ProbeDone

    rig = Rig()
    probe = rig.arrive("a", KEYS)
    rig.cache.receive(
        rig.now, ProbeDone(probe.op, bytes([Status.ALIEN]) * 8, alien_fields="weights_revision")
    )
    assert isinstance(rig.ask("a"), Compute)
    account = rig.finish("a", computed=8 * BLOCK + 5)
    assert account.ledger == {Outcome.INCOMPATIBLE: 8 * BLOCK, **TAIL}
    assert account.alien_fields == "weights_revision"


def test_a_block_behind_a_gap_takes_the_cause_of_the_gap() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes([Status.GHOST]) + held(6) + b"\x00")
    assert isinstance(rig.ask("a"), Compute)
    assert rig.finish("a", computed=8 * BLOCK + 5).ledger == {
        Outcome.EVICTED: 7 * BLOCK,
        Outcome.NEVER_PUBLISHED: BLOCK,
        **TAIL,
    }


def test_a_request_that_ends_before_its_lookup_was_no_fallback() -> None:
    rig = Rig()
    rig.arrive("a", KEYS)
    account = rig.finish("a", aborted=True)
    assert account.ledger == {Outcome.ABORTED: 8 * BLOCK + 5}
    assert account.fallback is None


# -- loads that go wrong ---------------------------------------------------------------------------------


def test_a_corrupt_block_is_dropped_booked_recomputed_and_published_anew() -> None:
    rig = Rig()
    (load,) = rig.loading("a", KEYS, held())
    rig.load_done(load, 3, Outcome.CORRUPT)
    assert rig.loaded == [Loaded("a", 3, safe=True)]
    (drop,) = rig.drops
    assert (drop.start, drop.stop, drop.tier, drop.cause) == (3, 4, 1, Outcome.CORRUPT)
    assert [(s.start, s.stop) for s in rig.computed("a", 8 * BLOCK)] == [(3, 4)]
    account = rig.finish("a", computed=5 * BLOCK + 5)
    assert account.ledger == {Outcome.POOL_HIT: 3 * BLOCK, Outcome.CORRUPT: 5 * BLOCK, **TAIL}
    assert account.fallback is Outcome.CORRUPT


def test_an_evicted_block_is_not_dropped_but_published_anew() -> None:
    rig = Rig()
    (load,) = rig.loading("a", KEYS, held())
    rig.load_done(load, 3, Outcome.EVICTED)
    assert rig.drops == []
    assert [(s.start, s.stop) for s in rig.computed("a", 8 * BLOCK)] == [(3, 4)]


@pytest.mark.parametrize("cause", [Outcome.FAILED, Outcome.LATE, Outcome.DECLINED])
def test_what_failed_without_being_refuted_is_not_published_anew(cause: Outcome) -> None:
    rig = Rig()
    (load,) = rig.loading("a", KEYS, held())
    rig.load_done(load, 3, cause)
    assert rig.computed("a", 8 * BLOCK) == []
    assert rig.finish("a", computed=5 * BLOCK + 5).ledger[cause] == 5 * BLOCK


def test_a_failed_load_is_not_asked_for_again() -> None:
    rig = Rig()
    (load,) = rig.loading("a", KEYS, held())
    rig.load_done(load, 0, Outcome.FAILED)
    assert isinstance(rig.ask("a", 0), Compute)
    assert len(rig.of(Load)) == 1


def test_a_first_segment_that_is_short_makes_the_second_useless() -> None:
    rig = Rig()
    first, second = rig.loading("a", KEYS, held(4, HOST) + held(4, POOL))
    rig.load_done(second)
    rig.load_done(first, 1, Outcome.EVICTED)
    assert rig.loaded == [Loaded("a", 1, safe=True)]
    assert rig.finish("a", computed=7 * BLOCK + 5).ledger == {
        Outcome.HOST_HIT: BLOCK,
        Outcome.EVICTED: 7 * BLOCK,
        **TAIL,
    }


# -- deadlines, and memory that may still be written to ---------------------------------------------------


def test_a_load_that_does_not_answer_is_not_waited_for_and_its_memory_stays_lent() -> None:
    rig = Rig()
    (load,) = rig.loading("a", KEYS, held())
    rig.tick(load.timeout_seconds + 0.2)
    assert rig.loaded == [], "its executor still has a grace"
    rig.tick(0.1)
    assert rig.loaded == [Loaded("a", 0, safe=False)]
    assert rig.cancels == [Cancel(load.op)]
    assert rig.freed == []
    rig.load_done(load, 5, Outcome.LATE)
    assert rig.freed == ["a"]
    account = rig.finish("a", computed=8 * BLOCK + 5)
    assert account.ledger == {Outcome.LATE: 8 * BLOCK, **TAIL}


def test_a_load_that_says_in_time_how_far_it_came_is_used_so_far() -> None:
    rig = Rig()
    (load,) = rig.loading("a", KEYS, held())
    rig.now += load.timeout_seconds + 0.1
    rig.load_done(load, 5, Outcome.LATE)
    assert rig.loaded == [Loaded("a", 5, safe=True)]
    account = rig.finish("a", computed=3 * BLOCK + 5)
    assert account.ledger == {Outcome.POOL_HIT: 5 * BLOCK, Outcome.LATE: 3 * BLOCK, **TAIL}


def test_memory_lent_twice_is_free_once_both_are_done() -> None:
    rig = Rig()
    first, second = rig.loading("a", KEYS[:6], held(3, HOST) + held(3))
    rig.load_done(first, 2, Outcome.CORRUPT)
    rig.tick(second.timeout_seconds + 1.0)
    assert rig.loaded == [Loaded("a", 2, safe=False)]
    (store,) = rig.computed("a", 6 * BLOCK)
    rig.store_done(store)
    assert rig.freed == []
    rig.load_done(second, 3)
    assert rig.freed == ["a"]


def test_memory_of_an_abandoned_load_is_never_free_not_even_by_a_store() -> None:
    rig = Rig(abandon_seconds=5.0, store_seconds=100.0)
    first, second = rig.loading("a", KEYS[:6], held(3, HOST) + held(3))
    rig.load_done(first, 2, Outcome.CORRUPT)
    rig.tick(second.timeout_seconds + 1.0)
    (store,) = rig.computed("a", 6 * BLOCK)
    rig.tick(5.0)
    rig.store_done(store)
    rig.finish("a", computed=4 * BLOCK + 5)
    assert rig.freed == []
    assert rig.cache.idle


def test_a_store_answered_after_staging_frees_nothing_of_a_later_life() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes(8))
    rig.ask("a")
    (store,) = rig.computed("a", 8 * BLOCK)
    rig.staged(store)
    rig.finish("a", computed=8 * BLOCK + 5)
    assert rig.freed == ["a"]
    (load,) = rig.loading("a", KEYS, held())
    rig.store_done(store)
    assert rig.freed == ["a"], "the new life's load is still under way"
    rig.load_done(load)


def test_a_store_abandoned_after_staging_takes_nothing_from_a_later_life() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes(8))
    rig.ask("a")
    (store,) = rig.computed("a", 8 * BLOCK)
    rig.staged(store)
    rig.finish("a", computed=8 * BLOCK + 5)
    rig.now += 200.0
    rig.known("a", KEYS, bytes(8))
    for _ in range(3):
        rig.tick(100.0)
    assert rig.cache.stores_in_flight == 0
    assert isinstance(rig.ask("a"), Compute), "the new life is still there"


def test_a_store_that_never_answers_ends() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes(8))
    rig.ask("a")
    (store,) = rig.computed("a", 8 * BLOCK)
    rig.finish("a", computed=8 * BLOCK + 5)
    rig.drain()
    assert rig.cancels == [Cancel(store.op)]
    assert rig.cache.idle
    assert rig.cache.stores_in_flight == 0
    assert rig.freed == []


# -- aborts in every phase --------------------------------------------------------------------------------


def test_an_abort_while_waiting_for_memory_releases_the_claim() -> None:
    rig = Rig()
    rig.known("a", KEYS, held())
    assert rig.ask("a") == LoadTo(8)
    rig.finish("a", aborted=True)
    assert rig.cache.flights.claims == 0
    assert rig.cache.flights.budget.in_flight == 0
    assert rig.cache.idle


def test_an_abort_during_a_load_frees_memory_only_after_the_answer() -> None:
    rig = Rig()
    (load,) = rig.loading("a", KEYS, held())
    account = rig.finish("a", aborted=True)
    assert account.ledger == {Outcome.ABORTED: 8 * BLOCK + 5}
    assert rig.cancels == [Cancel(load.op)]
    assert rig.freed == []
    assert rig.cache.flights.claims == 0
    rig.load_done(load, 2, Outcome.LATE)
    assert rig.freed == ["a"]
    assert rig.of(Loaded) == []
    assert rig.cache.idle


def test_an_abort_in_the_middle_of_computing_books_what_was_computed() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes(8))
    rig.ask("a", 2 * BLOCK)
    account = rig.finish("a", aborted=True, computed=3 * BLOCK)
    assert account.ledger == {
        Outcome.DEVICE_HIT: 2 * BLOCK,
        Outcome.NEVER_PUBLISHED: 3 * BLOCK,
        Outcome.ABORTED: 3 * BLOCK + 5,
    }


def test_an_abort_after_the_prompt_was_ready_changes_nothing_in_the_ledger() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes(8))
    rig.ask("a")
    rig.computed("a", 8 * BLOCK)
    account = rig.finish("a", aborted=True, computed=8 * BLOCK + 5)
    assert account.ledger == {Outcome.NEVER_PUBLISHED: 8 * BLOCK, **TAIL}


# -- several requests -------------------------------------------------------------------------------------


def test_two_asks_before_either_begins_are_one_load() -> None:
    rig = Rig()
    for rid in ("a", "b"):
        rig.known(rid, KEYS, held())
    assert rig.ask("a") == LoadTo(8)
    assert isinstance(rig.ask("b"), Wait)
    (load,) = rig.begin("a", 8)
    assert isinstance(rig.ask("b"), Wait)
    rig.load_done(load)
    assert Again("b") in rig.news
    assert isinstance(rig.ask("b", 8 * BLOCK), Compute)
    assert rig.finish("b", computed=5).ledger == {Outcome.DEVICE_HIT: 8 * BLOCK, **TAIL}
    assert len(rig.of(Load)) == 1


def test_who_waits_for_a_load_that_fails_may_load_itself() -> None:
    rig = Rig()
    for rid in ("a", "b"):
        rig.known(rid, KEYS, held())
    rig.ask("a")
    rig.ask("b")
    (load,) = rig.begin("a", 8)
    rig.load_done(load, 0, Outcome.FAILED)
    assert rig.ask("b") == LoadTo(8)


def test_nobody_waits_longer_for_anothers_load_than_computing_would_take() -> None:
    rig = Rig()
    rig.known("a", KEYS, held())
    rig.known("b", KEYS, held())
    rig.ask("a")
    rig.begin("a", 8)
    rig.ask("b")
    recompute = 8 * BLOCK * 0.001
    rig.tick(1.1 * recompute)
    answer = rig.ask("b")
    assert isinstance(answer, Compute)
    account = rig.finish("b", computed=8 * BLOCK + 5)
    assert account.decision is not None
    assert account.decision.reason is Reason.BUSY


def test_a_short_prompt_does_not_wait_for_a_long_load() -> None:
    rig = Rig()
    rig.cache.estimates.legs[1].observe(BLOCK_BYTES, 0.004)
    for _ in range(40):
        rig.cache.estimates.legs[1].observe(BLOCK_BYTES, 0.004)
    keys = chain(400)
    rig.known("long", keys, held(400))
    assert rig.ask("long") == LoadTo(400)
    rig.known("short", keys[:2], held(2))
    assert isinstance(rig.ask("short"), Compute)


def test_a_longer_prompt_loads_up_to_the_claim_of_another() -> None:
    rig = Rig()
    rig.known("a", KEYS, held())
    assert rig.ask("a", 4 * BLOCK) == LoadTo(8)
    rig.known("b", KEYS, held())
    assert rig.ask("b") == LoadTo(4)


def test_a_claim_ends_when_no_memory_is_made_and_a_late_begin_ends_at_once() -> None:
    rig = Rig()
    rig.known("a", KEYS, held())
    rig.ask("a")
    rig.drain()
    assert rig.cache.flights.claims == 0
    assert Again("a") in rig.news
    assert rig.begin("a", 8) == []
    assert rig.loaded == [Loaded("a", 0, safe=True)]
    assert isinstance(rig.ask("a"), Compute)


def test_a_wait_for_a_slot_ends_and_is_told_once() -> None:
    rig = Rig(replica_loads=1, new_replica_loads=1)
    rig.known("a", KEYS, held())
    rig.ask("a")
    rig.known("b", chain(8, "other"), held())
    rig.news.clear()
    assert isinstance(rig.ask("b"), Wait)
    until = rig.cache.next_deadline()
    assert until is not None
    rig.tick(until - rig.now)
    rig.tick()
    rig.tick()
    assert rig.news.count(Again("b")) == 1
    answer = rig.ask("b")
    assert isinstance(answer, Compute)
    account = rig.finish("b", computed=8 * BLOCK + 5)
    assert account.decision is not None
    assert account.decision.reason is Reason.BUSY


def test_a_slot_that_is_given_back_is_offered_to_who_waits() -> None:
    rig = Rig(replica_loads=1, new_replica_loads=1)
    (load,) = rig.loading("a", KEYS, held())
    rig.known("b", chain(8, "other"), held())
    assert isinstance(rig.ask("b"), Wait)
    rig.news.clear()
    rig.load_done(load)
    assert Again("b") in rig.news
    assert rig.ask("b") == LoadTo(8)


def test_a_wait_does_not_go_beyond_the_requests_deadline() -> None:
    rig = Rig(replica_loads=1, new_replica_loads=1)
    keys = chain(4000, "long")
    rig.known("a", keys, held(4000))
    rig.ask("a")
    rig.known("b", keys, held(4000), deadline_seconds=0.05)
    assert isinstance(rig.ask("b"), Wait)
    rig.tick(0.051)
    assert isinstance(rig.ask("b"), Compute)


# -- ranks ------------------------------------------------------------------------------------------------


def test_a_block_is_there_when_every_rank_has_it() -> None:
    rig = Rig(ranks=2)
    probe = rig.arrive("a", KEYS)
    rig.probed(probe, held(), rank=0)
    assert isinstance(rig.ask("a"), Wait)
    rig.probed(probe, held(5) + bytes([Status.GHOST]) * 3, rank=1)
    assert rig.ask("a") == LoadTo(5)


def test_a_block_that_lies_in_different_tiers_is_in_none() -> None:
    rig = Rig(ranks=2)
    probe = rig.arrive("a", KEYS)
    rig.probed(probe, held(8, HOST), rank=0)
    rig.probed(probe, held(2, HOST) + held(6, POOL), rank=1)
    assert rig.ask("a") == LoadTo(2)


def test_the_shortest_rank_decides_how_far_a_load_came() -> None:
    rig = Rig(ranks=2)
    probe = rig.arrive("a", KEYS)
    for rank in (0, 1):
        rig.probed(probe, held(), rank=rank)
    rig.ask("a")
    (load,) = rig.begin("a", 8)
    rig.load_done(load, 8, rank=0)
    assert rig.loaded == [], "the first rank does not decide"
    rig.load_done(load, 6, Outcome.EVICTED, rank=1)
    assert rig.loaded == [Loaded("a", 6, safe=True)]


def test_memory_is_free_after_every_rank_has_answered() -> None:
    rig = Rig(ranks=2)
    probe = rig.arrive("a", KEYS)
    for rank in (0, 1):
        rig.probed(probe, bytes(8), rank=rank)
    rig.ask("a")
    (store,) = rig.computed("a", 8 * BLOCK)
    rig.store_done(store, rank=0)
    assert rig.of(Free) == []
    rig.store_done(store, rank=1)
    assert rig.freed == ["a"]


def test_bytes_of_ranks_add_up_and_their_seconds_do_not() -> None:
    rig = Rig(ranks=2)
    probe = rig.arrive("a", KEYS)
    for rank in (0, 1):
        rig.probed(probe, held(), rank=rank)
    rig.ask("a")
    (load,) = rig.begin("a", 8)
    for rank, seconds in ((0, 0.003), (1, 0.002)):
        legs = Legs(0.0, seconds, 0.0, 4 * BLOCK_BYTES)
        rig.cache.receive(rig.now, LoadDone(load.op, 8, None, legs, rank))
    (run,) = rig.finish("a", computed=5).loads
    assert (run.legs.bytes, run.legs.wire_seconds) == (8 * BLOCK_BYTES, 0.003)


# -- what loads teach -------------------------------------------------------------------------------------


def test_a_link_that_became_slow_is_found_out_though_no_load_over_it_is_whole() -> None:
    rig = Rig()
    declined = 0
    for i in range(12):
        keys = chain(64, str(i))
        rig.known(f"r{i}", keys, held(64))
        answer = rig.ask(f"r{i}")
        if isinstance(answer, LoadTo):
            (load,) = rig.begin(f"r{i}", answer.end_block)
            rig.now += load.timeout_seconds
            legs = Legs(0.0, load.timeout_seconds, 0.0, 3 * BLOCK_BYTES)
            rig.cache.receive(rig.now, LoadDone(load.op, 3, Outcome.LATE, legs))
            rig.fetch()
        else:
            declined += 1
        rig.finish(f"r{i}", computed=10)
    assert declined >= 9


def test_a_pool_that_hangs_is_found_out_though_nothing_arrives() -> None:
    rig = Rig()
    declined = 0
    for i in range(12):
        rig.known(f"r{i}", chain(64, str(i)), held(64))
        answer = rig.ask(f"r{i}")
        if isinstance(answer, LoadTo):
            (load,) = rig.begin(f"r{i}", answer.end_block)
            rig.now += load.timeout_seconds
            legs = Legs(0.0, load.timeout_seconds, 0.0, 0)
            rig.cache.receive(rig.now, LoadDone(load.op, 0, Outcome.LATE, legs))
            rig.fetch()
        else:
            declined += 1
        rig.finish(f"r{i}", computed=10)
    assert declined >= 6


def test_a_link_that_recovered_is_found_out_by_the_few_that_explore() -> None:
    rig = Rig(explore_share=1.0)
    for _ in range(10):
        rig.cache.estimates.legs[1].observe(64 * BLOCK_BYTES, 500.0)
    rig.known("a", chain(64), held(64))
    assert rig.ask("a") == LoadTo(1), "more of it would be too slow to try"
    (load,) = rig.begin("a", 1)
    assert load.timeout_seconds < 6.0, "nor is it waited for as long as was predicted"


def test_a_cancelled_load_that_moved_bytes_still_teaches() -> None:
    rig = Rig()
    (load,) = rig.loading("a", KEYS, held())
    before = rig.cache.estimates.legs[1].n
    rig.finish("a", aborted=True)
    rig.load_done(load, 4, Outcome.LATE)
    assert rig.cache.estimates.legs[1].n == before + 1


def test_of_two_overdue_loads_neither_is_abandoned() -> None:
    rig = Rig(load_seconds=1.0, patience=100.0)
    rig.cache.switch(policy="always")
    loads = rig.loading("a", KEYS, bytes([HOST]) * 4 + bytes([POOL]) * 4)
    assert len(loads) == 2
    rig.now += 5.0
    rig.cache.tick(rig.now)
    rig.fetch()
    for load in loads:
        rig.load_done(load, 0, Outcome.LATE)
    rig.computed("a", 0)
    rig.finish("a")
    assert "a" in rig.freed
    assert rig.cache.idle
