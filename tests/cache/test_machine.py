"""The life of a request, one move at a time."""

from __future__ import annotations

import pytest
from rig import BLOCK, HOST, POOL, Rig, chain

from kvferry.cache.commands import Evicted, Free, LoadDone, Loaded, Probe, ProbeDone, Status, StoreDone
from kvferry.cache.requests import Compute, LoadTo, Wait
from kvferry.gate.facts import Arm, Reason
from kvferry.outcomes import Outcome

KEYS = chain(8)


def held(blocks: int = 8, tier: int = POOL) -> bytes:
    return bytes([tier]) * blocks


def test_a_hit_is_loaded_and_booked_as_such() -> None:
    rig = Rig()
    (load,) = rig.loading("a", KEYS, held())
    rig.load_done(load)
    assert rig.loaded == [Loaded("a", 8, safe=True)]
    account = rig.finish("a", computed=5)
    assert account.ledger == {Outcome.POOL_HIT: 8 * BLOCK, Outcome.PARTIAL_BLOCK: 5}
    assert rig.cache.idle


def test_a_miss_is_computed_and_published() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes(8))
    assert isinstance(rig.ask("a"), Compute)
    (store,) = rig.computed("a", 8 * BLOCK)
    assert (store.start, store.stop) == (0, 8)
    account = rig.finish("a", computed=8 * BLOCK + 5)
    assert account.ledger == {Outcome.NEVER_PUBLISHED: 8 * BLOCK, Outcome.PARTIAL_BLOCK: 5}
    assert not rig.cache.idle
    rig.store_done(store)
    assert rig.freed == ["a"]
    assert rig.cache.idle


def test_what_the_engine_holds_is_not_loaded() -> None:
    rig = Rig()
    rig.known("a", KEYS, held())
    answer = rig.ask("a", 3 * BLOCK)
    assert answer == LoadTo(8)
    (load,) = rig.begin("a", 8)
    assert (load.start, load.stop) == (3, 8)
    rig.load_done(load)
    assert rig.finish("a", computed=5).ledger == {
        Outcome.DEVICE_HIT: 3 * BLOCK,
        Outcome.POOL_HIT: 5 * BLOCK,
        Outcome.PARTIAL_BLOCK: 5,
    }


def test_segments_of_different_tiers_are_one_load_each() -> None:
    rig = Rig()
    loads = rig.loading("a", KEYS, held(3, HOST) + held(5, POOL))
    assert [(c.tier, c.start, c.stop) for c in loads] == [(0, 0, 3), (1, 3, 8)]
    rig.load_done(loads[1])
    assert rig.loaded == []
    rig.load_done(loads[0])
    assert rig.finish("a", computed=5).ledger == {
        Outcome.HOST_HIT: 3 * BLOCK,
        Outcome.POOL_HIT: 5 * BLOCK,
        Outcome.PARTIAL_BLOCK: 5,
    }


def test_a_head_that_only_the_engine_holds_does_not_hide_the_rest() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes([Status.GHOST]) * 2 + held(6))
    assert rig.ask("a", 2 * BLOCK) == LoadTo(8)


def test_memory_for_fewer_blocks_loads_fewer() -> None:
    rig = Rig()
    rig.known("a", KEYS, held())
    assert rig.ask("a", free_blocks=5) == LoadTo(5)
    (load,) = rig.begin("a", 3)
    assert (load.start, load.stop) == (0, 3)
    rig.load_done(load)
    account = rig.finish("a", computed=5 * BLOCK + 5)
    assert account.ledger[Outcome.DECLINED] == 5 * BLOCK


@pytest.mark.parametrize("tokens", [0, 1, BLOCK - 1])
def test_a_prompt_without_a_full_block_asks_nothing(tokens: int) -> None:
    rig = Rig()
    rig.cache.arrive(rig.now, "a", [], tokens)
    assert rig.fetch() == []
    assert isinstance(rig.ask("a"), Compute)
    account = rig.finish("a", computed=tokens)
    assert account.ledger == ({Outcome.PARTIAL_BLOCK: tokens} if tokens else {})


def test_a_prompt_of_exactly_one_block_has_its_last_token_to_compute() -> None:
    rig = Rig()
    rig.known("a", chain(1), held(1), tokens=BLOCK)
    assert isinstance(rig.ask("a"), Compute)
    assert rig.finish("a", computed=BLOCK).ledger == {Outcome.NOT_CACHEABLE: BLOCK}


def test_a_barred_request_is_not_looked_up_and_says_why() -> None:
    rig = Rig()
    rig.cache.arrive(rig.now, "a", KEYS, 8 * BLOCK, barred=Outcome.INCOMPATIBLE, barred_why="numerics")
    assert rig.fetch() == []
    account = rig.finish("a", computed=8 * BLOCK)
    assert account.ledger == {Outcome.INCOMPATIBLE: 7 * BLOCK, Outcome.NOT_CACHEABLE: BLOCK}
    assert account.alien_fields == "numerics"


def test_asking_again_gives_the_same_answer() -> None:
    rig = Rig()
    rig.known("a", KEYS, held())
    assert rig.ask("a") == rig.ask("a", 2 * BLOCK) == LoadTo(8)
    assert rig.cache.flights.budget.in_flight == 1


def test_an_answer_to_compute_never_changes_but_what_is_local_is_booked_as_it_is() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes(8))
    assert isinstance(rig.ask("a", 4 * BLOCK), Compute)
    assert isinstance(rig.ask("a", 2 * BLOCK), Compute)
    assert rig.finish("a", computed=6 * BLOCK + 5).ledger[Outcome.DEVICE_HIT] == 2 * BLOCK


def test_a_request_id_in_use_is_refused() -> None:
    rig = Rig()
    rig.arrive("a", KEYS)
    with pytest.raises(ValueError, match="still in the cache"):
        rig.cache.arrive(rig.now, "a", KEYS, 100)


def test_a_request_is_settled_once() -> None:
    rig = Rig()
    rig.loading("a", KEYS, held())
    rig.finish("a", aborted=True)
    with pytest.raises(ValueError, match="settled already"):
        rig.finish("a", aborted=True)


def test_a_load_is_begun_once() -> None:
    rig = Rig()
    rig.loading("a", KEYS, held())
    with pytest.raises(ValueError, match="begun its load already"):
        rig.begin("a", 8)


def test_a_load_that_nobody_decided_is_not_begun() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes(8))
    rig.ask("a")
    with pytest.raises(ValueError, match="no load to begin"):
        rig.begin("a", 8)


def test_an_answer_of_the_wrong_kind_is_an_error() -> None:
    rig = Rig()
    probe = rig.arrive("a", KEYS)
    with pytest.raises(ValueError, match="no answer to the Probe"):
        rig.cache.receive(rig.now, LoadDone(probe.op, 8))


def test_no_memory_after_all_means_recompute() -> None:
    rig = Rig()
    rig.known("a", KEYS, held())
    rig.ask("a")
    rig.cache.begin(rig.now, "a", 0, None)
    assert isinstance(rig.ask("a"), Compute)
    assert rig.cache.flights.claims == 0
    account = rig.finish("a", computed=8 * BLOCK + 5)
    assert account.decision is not None
    assert account.decision.reason is Reason.NO_MEMORY


def test_a_head_start_on_computing_gives_up_the_claim() -> None:
    rig = Rig()
    rig.known("a", KEYS, held())
    rig.ask("a")
    rig.computed("a", 8 * BLOCK)
    assert rig.cache.flights.claims == 0
    assert rig.finish("a", computed=8 * BLOCK + 5).ledger[Outcome.DECLINED] == 8 * BLOCK


def test_nothing_computed_on_doubtful_blocks_is_published() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes(8))
    rig.ask("a")
    assert rig.computed("a", 8 * BLOCK, clean=False) == []
    assert rig.lent is False


def test_only_what_was_computed_is_published() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes(8))
    rig.ask("a")
    assert [(s.start, s.stop) for s in rig.computed("a", 5 * BLOCK + 3)] == [(0, 5)]


def test_blocks_are_published_once_though_told_of_twice() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes(8))
    rig.ask("a")
    (first,) = rig.computed("a", 4 * BLOCK)
    rig.store_done(first)
    assert [(s.start, s.stop) for s in rig.computed("a", 8 * BLOCK)] == [(4, 8)]


def test_blocks_that_another_is_publishing_are_left_to_it() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes([0, Status.LEASED, Status.LEASED, 0]) + held(4))
    rig.ask("a")
    assert [(s.start, s.stop) for s in rig.computed("a", 8 * BLOCK)] == [(0, 1), (3, 4)]


def test_a_store_in_flight_is_not_repeated_by_a_second_request() -> None:
    rig = Rig()
    for rid in ("a", "b"):
        rig.known(rid, KEYS, bytes(8))
        rig.ask(rid)
    (store,) = rig.computed("a", 8 * BLOCK)
    assert rig.computed("b", 8 * BLOCK) == []
    rig.store_done(store)
    assert [(s.start, s.stop) for s in rig.computed("b", 8 * BLOCK)] == [(0, 8)]


def test_stores_have_slots() -> None:
    rig = Rig(replica_stores=1)
    for rid in ("a", "b"):
        rig.known(rid, chain(4, rid), bytes(4))
        rig.ask(rid)
    (store,) = rig.computed("a", 4 * BLOCK)
    assert rig.computed("b", 4 * BLOCK) == []
    rig.store_done(store)
    assert rig.cache.stores_in_flight == 0


def test_staging_is_enough_to_give_memory_back_and_is_said_once() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes(8))
    rig.ask("a")
    (store,) = rig.computed("a", 8 * BLOCK)
    rig.staged(store)
    assert rig.freed == ["a"]
    rig.store_done(store)
    assert rig.freed == ["a"]


def test_a_free_that_was_not_fetched_does_not_cover_what_is_lent_after_it() -> None:
    rig = Rig()
    rig.known("a", KEYS, bytes(8))
    rig.ask("a")
    (first,) = rig.computed("a", 4 * BLOCK)
    rig.cache.receive(rig.now, StoreDone(first.op, 4))
    (second,) = rig.computed("a", 8 * BLOCK)
    assert rig.freed == []
    rig.store_done(second)
    assert rig.freed == ["a"]


def test_the_second_touch_publishes() -> None:
    rig = Rig("second-touch")
    for rid, runs in (("a", []), ("b", [(0, 8)])):
        rig.known(rid, KEYS, bytes(8))
        rig.ask(rid)
        assert [(s.start, s.stop) for s in rig.computed(rid, 8 * BLOCK)] == runs
        rig.finish(rid, computed=8 * BLOCK + 5)


def test_nothing_behind_the_boundary_is_published() -> None:
    rig = Rig("declared")
    rig.known("a", KEYS, bytes(8), boundary_tokens=3 * BLOCK + 7)
    rig.ask("a")
    assert [(s.start, s.stop) for s in rig.computed("a", 8 * BLOCK)] == [(0, 3)]


@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_modes_that_never_load(mode: str) -> None:
    rig = Rig(mode=mode)
    rig.cache.arrive(rig.now, "a", KEYS, 8 * BLOCK + 5)
    for probe in rig.fetch():
        assert isinstance(probe, Probe)
        rig.cache.receive(rig.now, ProbeDone(probe.op, held()))
    assert isinstance(rig.ask("a"), Compute)
    account = rig.finish("a", computed=8 * BLOCK + 5)
    cause = Outcome.NOT_CACHEABLE if mode == "off" else Outcome.DECLINED
    assert account.ledger[cause] == 8 * BLOCK
    assert account.loads == ()


def test_shadow_asks_for_marks_and_leaves_marks() -> None:
    rig = Rig(mode="shadow")
    probe = rig.arrive("a", KEYS)
    assert probe.keys_only
    rig.probed(probe, bytes(8))
    rig.ask("a")
    (store,) = rig.computed("a", 8 * BLOCK)
    assert store.keys_only


def test_the_holdout_publishes_but_never_loads() -> None:
    rig = Rig(holdout_share=1.0)
    rig.known("a", KEYS, bytes(4) + held(4))
    assert isinstance(rig.ask("a", 4 * BLOCK), Compute)
    assert rig.computed("a", 8 * BLOCK) != []
    account = rig.finish("a", computed=4 * BLOCK + 5)
    assert account.arm is Arm.HOLDOUT
    assert account.decision is not None
    assert account.decision.reason is Reason.HOLDOUT
    assert account.decision.candidate_bytes > 0


def test_outside_the_canary_nothing_is_loaded() -> None:
    rig = Rig(mode="canary", canary_share=0.0)
    rig.known("a", KEYS, held())
    assert isinstance(rig.ask("a"), Compute)
    assert rig.finish("a", computed=8 * BLOCK + 5).arm is Arm.OUTSIDE


def test_a_switch_does_not_split_a_request() -> None:
    rig = Rig()
    rig.known("a", KEYS, held())
    rig.cache.switch(mode="off")
    assert rig.ask("a") == LoadTo(8)
    rig.cache.arrive(rig.now, "b", KEYS, 8 * BLOCK)
    assert rig.fetch() == []


def test_policies_are_switched_at_run_time() -> None:
    rig = Rig()
    rig.cache.switch(policy="never")
    rig.known("a", KEYS, held())
    assert isinstance(rig.ask("a"), Compute)
    rig.cache.switch(policy="always")
    rig.known("b", KEYS, held())
    assert rig.ask("b") == LoadTo(8)


def test_sharing_that_costs_turns_itself_off_and_says_so() -> None:
    rig = Rig()
    for i in range(200):
        rig.cache.trial.observe(
            treated=i % 2 == 0,
            ready_seconds=(2.0 if i % 2 == 0 else 1.0) * (1 + i % 7 / 10),
            recompute_seconds=1.0,
        )
    (load,) = rig.loading("a", KEYS, held())
    rig.load_done(load)
    account = rig.finish("a", computed=5)
    assert rig.cache.mode == "off"
    assert any("turned itself off" in note for note in account.notes)
    rig.cache.switch(mode="on")
    (load,) = rig.loading("b", KEYS, held())
    rig.load_done(load)
    rig.finish("b", computed=5)
    assert rig.cache.mode == "on", "switched on by hand, it begins a new trial"


def test_sharing_that_costs_stays_on_when_told_to() -> None:
    rig = Rig(auto_off=False)
    for i in range(200):
        rig.cache.trial.observe(
            treated=i % 2 == 0, ready_seconds=9.0 if i % 2 == 0 else 1.0 + i % 3, recompute_seconds=1.0
        )
    (load,) = rig.loading("a", KEYS, held())
    rig.load_done(load)
    rig.finish("a", computed=5)
    assert rig.cache.mode == "on"


def test_a_request_that_allows_fewer_tokens_gets_fewer() -> None:
    rig = Rig()
    rig.known("a", KEYS, held(), max_load_tokens=3 * BLOCK + 2)
    assert rig.ask("a") == LoadTo(3)


def test_evictions_are_counted_by_whether_they_were_read() -> None:
    rig = Rig()
    rig.cache.receive(rig.now, Evicted(KEYS[:3], b"\x01\x00\x00"))
    assert (rig.cache.evicted_read_blocks, rig.cache.evicted_unread_blocks) == (1, 2)


def test_waiting_means_waiting() -> None:
    rig = Rig()
    rig.arrive("a", KEYS)
    assert isinstance(rig.ask("a"), Wait)
    assert rig.of(Free) == []


class TestHandoff:
    """A prefill that another replica has done for this very request."""

    ABSENT, FOUND = bytes(8), bytes([POOL]) * 8

    def test_blocks_that_are_not_there_yet_are_asked_for_again(self) -> None:
        rig, keys = Rig(), chain(8)
        rig.known("a", keys, self.ABSENT, handoff_tokens=8 * BLOCK)
        assert isinstance(rig.ask("a"), Wait)
        rig.now += 0.006
        assert isinstance(rig.ask("a"), Wait)
        (again,) = [command for command in rig.fetch() if isinstance(command, Probe)]
        rig.probed(again, self.FOUND)
        assert isinstance(rig.ask("a"), LoadTo)

    def test_they_are_not_waited_for_longer_than_the_setting(self) -> None:
        rig, keys = Rig(handoff_seconds=1.0), chain(8)
        rig.known("a", keys, self.ABSENT, handoff_tokens=8 * BLOCK)
        rig.now += 1.1
        assert isinstance(rig.ask("a"), Compute)

    def test_nor_beyond_the_requests_own_deadline(self) -> None:
        rig, keys = Rig(), chain(8)
        rig.known("a", keys, self.ABSENT, handoff_tokens=8 * BLOCK, deadline_seconds=0.05)
        rig.now += 0.06
        assert isinstance(rig.ask("a"), Compute)

    def test_a_tier_that_does_not_answer_ends_the_wait(self) -> None:
        rig, keys = Rig(), chain(8)
        rig.known("a", keys, bytes([Status.FAILED]) * 8, handoff_tokens=8 * BLOCK)
        assert isinstance(rig.ask("a"), Compute)

    def test_what_is_loaded_is_booked_as_handed_over(self) -> None:
        rig, keys = Rig(), chain(8)
        for load in rig.loading("a", keys, self.FOUND, handoff_tokens=6 * BLOCK):
            rig.load_done(load)
        rig.computed("a", 8 * BLOCK)
        ledger = rig.finish("a", computed=5).ledger
        assert ledger[Outcome.HANDOFF] == 6 * BLOCK
        assert ledger[Outcome.POOL_HIT] == 2 * BLOCK
        assert sum(ledger.values()) == 8 * BLOCK + 5

    def test_it_takes_no_part_in_the_comparison_with_the_holdout(self) -> None:
        rig, keys = Rig(holdout_share=1.0), chain(8)
        rig.known("a", keys, self.FOUND, handoff_tokens=8 * BLOCK)
        assert isinstance(rig.ask("a"), LoadTo)

    def test_the_giving_side_publishes_what_nobody_asked_for_before(self) -> None:
        rig, keys = Rig("second-touch"), chain(8)
        rig.known("a", keys, self.ABSENT, gives=True)
        rig.ask("a")
        assert [(store.start, store.stop) for store in rig.computed("a", 8 * BLOCK)] == [(0, 8)]

    def test_and_nothing_behind_its_boundary(self) -> None:
        rig, keys = Rig("second-touch"), chain(8)
        rig.known("a", keys, self.ABSENT, gives=True, boundary_tokens=3 * BLOCK)
        rig.ask("a")
        assert [(store.start, store.stop) for store in rig.computed("a", 8 * BLOCK)] == [(0, 3)]

    def test_and_nothing_of_a_class_that_is_not_shared(self) -> None:
        rig, keys = Rig("second-touch"), chain(8)
        rig.known("a", keys, self.ABSENT, gives=True, data_class="personal")
        rig.ask("a")
        assert rig.computed("a", 8 * BLOCK) == []

    def test_a_replica_that_has_computed_nothing_yet_takes_it_all_the_same(self) -> None:
        rig, keys = Rig(learned=False), chain(8)
        rig.known("a", keys, self.FOUND, handoff_tokens=8 * BLOCK)
        assert rig.ask("a") == LoadTo(8)

    def test_while_a_prefix_hit_is_computed_there_to_learn(self) -> None:
        rig, keys = Rig(learned=False), chain(8)
        rig.known("a", keys, self.FOUND)
        assert isinstance(rig.ask("a"), Compute)

    def test_when_its_wait_is_over_a_wait_for_a_slot_ends_as_any_other(self) -> None:
        rig = Rig(replica_loads=1, new_replica_loads=1)
        rig.loading("other", chain(8, "other"), self.FOUND)
        rig.known("a", chain(8), self.FOUND, handoff_tokens=8 * BLOCK)
        for _ in range(200):
            if not isinstance(rig.ask("a"), Wait):
                break
            rig.now += 0.01
        assert isinstance(rig.ask("a"), Compute)
