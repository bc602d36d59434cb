"""The gate alone, with an engine played by the test and a clock that only it moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.cache.account import Account
from kvferry.clock import VirtualClock
from kvferry.config import load
from kvferry.engines.vllm.gated.gate import ForeignGate
from kvferry.engines.vllm.gated.passing import Passing
from kvferry.engines.vllm.gated.settings import cache_settings
from kvferry.errors import InputError
from kvferry.gate.facts import Arm, Reason
from kvferry.outcomes import Outcome
from kvferry.store.tier import Kind

BLOCK = 16
TOKEN_SECONDS = 0.001
BYTES = 1000


class EngineRequest:
    def __init__(self) -> None:
        self.num_computed_tokens = 0
        self.block_hashes: Sequence[bytes] = ()


class Play:
    """One gate, and an engine that computes a token in a millisecond."""

    def __init__(self, *, warm: bool = True, **settings: Any) -> None:
        gate = {"holdout_share": 0, "explore_share": 0, **settings.pop("gate", {})}
        config = load(env={}, json={"gate": gate, **settings}).config
        self.clock = VirtualClock()
        self.accounts: dict[str, Account] = {}
        self.requests: dict[str, EngineRequest] = {}
        self.tokens: dict[str, int] = {}
        self.gate = ForeignGate(
            cache_settings(config, block_tokens=BLOCK, bytes_per_token=BYTES),
            kind=Kind.POOL,
            chunk_tokens=4096,
            data_class="default",
            clock=self.clock,
            on_settled=self._settled,
        )
        if warm:
            for number, size in enumerate((200, 400, 800)):
                self.arrive(f"warm-{number}", size)
                self.admit(f"warm-{number}", 0, 0)
                self.step({f"warm-{number}": size})
                self.gate.finish(f"warm-{number}", aborted=False)

    def _settled(self, passing: Passing, account: Account) -> None:
        self.accounts[account.rid] = account

    def arrive(self, rid: str, tokens: int, params: Mapping[str, Any] | None = None) -> None:
        self.requests[rid] = EngineRequest()
        self.tokens[rid] = tokens
        self.gate.arrive(rid, self.requests[rid], tokens, params)

    def ask(self, rid: str, found: int | None, local: int = 0) -> int | None:
        self.gate.asked(rid)
        return self.gate.answer(rid, local, found)

    def admit(self, rid: str, local: int, external: int, **how: Any) -> None:
        self.gate.admitted(
            rid,
            external,
            asynchronous=how.get("asynchronous", True),
            blocks=how.get("blocks", ()),
            sources=how.get("sources", {Kind.POOL: external} if external else {}),
        )
        self.requests[rid].num_computed_tokens = local + external

    def step(self, scheduled: Mapping[str, int], extra: float = 0.0, failed: Sequence[int] = ()) -> None:
        self.gate.step_began(scheduled)
        self.clock.advance(sum(scheduled.values()) * TOKEN_SECONDS + extra)
        for rid, tokens in scheduled.items():
            self.requests[rid].num_computed_tokens += tokens
        if failed:
            self.gate.heard((), (), failed)
        self.gate.step_ended()

    def load(self, rid: str, tokens: int, seconds: float, *, found: int) -> int | None:
        """One request whose asynchronous load takes so long, up to the end of its prefill."""
        self.arrive(rid, tokens)
        answer = self.ask(rid, found)
        if answer is None:
            return None
        self.admit(rid, 0, answer)
        if answer:
            self.clock.advance(seconds)
            self.gate.heard((rid,), (), ())
        self.step({rid: tokens - answer})
        return answer

    def end(self, rid: str, *, aborted: bool = False) -> Account:
        self.gate.finish(rid, aborted=aborted)
        account = self.accounts[rid]
        assert sum(account.ledger.values()) == account.prompt_tokens
        return account

    def learn(self, bytes_per_second: float) -> None:
        for number, found in enumerate((320, 640, 160, 480)):
            rid = f"learn-{bytes_per_second}-{number}"
            self.gate.change(policy="always")
            assert self.load(rid, found + 10, found * BYTES / bytes_per_second, found=found) == found
            self.end(rid)
        self.gate.change(policy="rule")


FAST, SLOW = 100e6, 0.5e6
"""A token weighs 1,000 bytes and takes a millisecond: at 1 MB/s both ways are equal."""


@pytest.fixture
def play() -> Play:
    return Play()


def test_the_first_load_is_let_pass_to_learn(play: Play) -> None:
    assert play.load("a", 330, 0.05, found=320) == 320
    decision = play.end("a").decision
    assert decision is not None
    assert decision.reason is Reason.UNMEASURED


def test_nothing_passes_before_anything_was_computed() -> None:
    play = Play(warm=False)
    assert play.load("a", 330, 0.05, found=320) == 0
    decision = play.end("a").decision
    assert decision is not None
    assert decision.reason is Reason.UNKNOWN_PREFILL


def test_a_fast_connector_passes_whole(play: Play) -> None:
    play.learn(FAST)
    assert play.load("a", 330, 0.0032, found=320) == 320
    account = play.end("a")
    assert account.ledger == {Outcome.POOL_HIT: 320, Outcome.PARTIAL_BLOCK: 10}
    assert account.decision is not None
    assert account.decision.reason is Reason.PAYS


def test_a_slow_connector_is_vetoed(play: Play) -> None:
    play.learn(SLOW)
    assert play.load("a", 330, 0.64, found=320) == 0
    account = play.end("a")
    assert account.ledger == {Outcome.DECLINED: 320, Outcome.PARTIAL_BLOCK: 10}
    assert account.decision is not None
    assert account.decision.reason is Reason.SLOWER


def test_the_predictions_are_what_the_loads_took(play: Play) -> None:
    play.learn(SLOW)
    play.load("a", 330, 0.64, found=320)
    decision = play.end("a").decision
    assert decision is not None
    assert decision.load_median_seconds == pytest.approx(0.64, rel=0.02)
    assert decision.recompute_seconds == pytest.approx(0.32, rel=0.02)


def test_a_vetoed_prefix_is_timed(play: Play) -> None:
    play.learn(SLOW)
    play.load("a", 330, 0.64, found=320)
    assert play.end("a").recompute_seconds == pytest.approx(0.32, rel=0.02)


def test_a_veto_is_sticky(play: Play) -> None:
    play.learn(SLOW)
    play.arrive("a", 330)
    assert play.ask("a", 320) == 0
    play.gate.change(policy="always")
    assert play.ask("a", 320) == 0


def test_a_yes_is_sticky_until_the_engine_has_room(play: Play) -> None:
    play.learn(FAST)
    play.arrive("a", 330)
    assert play.ask("a", 320) == 320
    play.gate.change(policy="never")
    assert play.ask("a", 304, local=16) == 304


def test_a_connector_that_is_still_looking_is_waited_for(play: Play) -> None:
    play.arrive("a", 330)
    assert play.ask("a", None) is None
    play.clock.advance(0.25)
    assert play.ask("a", 320) == 320
    assert play.end("a", aborted=True).lookup_seconds == pytest.approx(0.25)


def test_a_lookup_that_is_over_is_no_reason_against_the_load(play: Play) -> None:
    play.learn(FAST)
    play.arrive("a", 330)
    assert play.ask("a", None) is None
    play.clock.advance(1.0)
    assert play.ask("a", 320) == 320, "computing takes 0.33 s, the load 3 ms; the second is spent already"


def test_what_it_does_not_find_is_booked_as_never_published(play: Play) -> None:
    assert play.load("a", 330, 0, found=0) == 0
    assert play.end("a").ledger == {Outcome.NEVER_PUBLISHED: 320, Outcome.PARTIAL_BLOCK: 10}


def test_local_tokens_come_first(play: Play) -> None:
    play.arrive("a", 330)
    assert play.ask("a", 160, local=160) == 160
    play.admit("a", 160, 160)
    play.gate.heard(("a",), (), ())
    play.step({"a": 10})
    assert play.end("a").ledger == {
        Outcome.DEVICE_HIT: 160,
        Outcome.POOL_HIT: 160,
        Outcome.PARTIAL_BLOCK: 10,
    }


def test_tokens_behind_the_last_block_are_booked_as_brought(play: Play) -> None:
    # Some connectors offer all of a prompt but its last token.
    assert play.load("a", 330, 0.05, found=329) == 329
    assert play.end("a").ledger == {Outcome.POOL_HIT: 329, Outcome.PARTIAL_BLOCK: 1}


def test_hits_are_booked_by_where_they_were(play: Play) -> None:
    play.arrive("a", 330)
    assert play.ask("a", 320) == 320
    play.admit("a", 0, 320, sources={Kind.DISK: 128, Kind.HOST: 192})
    play.gate.heard(("a",), (), ())
    play.step({"a": 10})
    account = play.end("a")
    assert account.ledger == {Outcome.HOST_HIT: 192, Outcome.DISK_HIT: 128, Outcome.PARTIAL_BLOCK: 10}
    assert play.gate.transfers.kind is Kind.HOST


def test_a_synchronous_load_takes_what_its_step_took_longer(play: Play) -> None:
    play.arrive("a", 330)
    assert play.ask("a", 320) == 320
    play.admit("a", 0, 320, asynchronous=False)
    play.step({"a": 10}, extra=0.2)
    account = play.end("a")
    assert account.load_seconds == pytest.approx(0.2, rel=0.05)
    assert play.gate.estimates.legs[0].seconds(320 * BYTES) == pytest.approx(0.2, rel=0.05)


def test_a_step_with_a_load_teaches_nothing_of_prefill(play: Play) -> None:
    before = play.gate.estimates.prefill.n
    play.arrive("a", 330)
    play.ask("a", 320)
    play.admit("a", 0, 320, asynchronous=False)
    play.step({"a": 10}, extra=0.2)
    assert play.gate.estimates.prefill.n == before


def test_what_a_synchronous_load_takes_from_others_is_charged(play: Play) -> None:
    play.load("other", 100, 0, found=0)
    play.arrive("a", 330)
    play.ask("a", 320)
    play.admit("a", 0, 320, asynchronous=False)
    play.step({"a": 10, "other": 1}, extra=0.2)
    assert play.gate.estimates.interference.held_seconds_per_load == pytest.approx(0.2, rel=0.05)


def test_the_queue_is_part_of_computing(play: Play) -> None:
    play.learn(SLOW)
    play.arrive("long", 3000)
    play.ask("long", 0)
    play.admit("long", 0, 0)
    play.arrive("a", 330)
    assert play.ask("a", 320) == 320, "three seconds of prefill wait before it: the slow load is faster"


def test_all_that_is_allowed_or_nothing(play: Play) -> None:
    play.arrive("a", 330, {"kvferry": {"max_load_tokens": 300}})
    assert play.ask("a", 320) == 0
    play.admit("a", 0, 0)
    play.step({"a": 330})
    decision = play.end("a").decision
    assert decision is not None
    assert decision.reason is Reason.NOT_ALLOWED


def test_a_request_that_cannot_be_read_loads_nothing(play: Play) -> None:
    play.arrive("a", 330, {"kvferry": {"max_laod_tokens": 3}})
    assert play.ask("a", 320) == 0
    assert "max_laod_tokens" in play.end("a", aborted=True).notes[0]


def test_a_load_beyond_the_request_s_deadline_is_none(play: Play) -> None:
    play.learn(5e6)
    play.arrive("a", 330, {"kvferry": {"deadline_seconds": 0.01}})
    assert play.ask("a", 320) == 0
    decision = play.end("a", aborted=True).decision
    assert decision is not None
    assert decision.reason is Reason.DEADLINE


def test_a_failed_block_ends_the_hit(play: Play) -> None:
    play.arrive("a", 330)
    play.ask("a", 320)
    play.admit("a", 0, 320, blocks=range(100, 120))
    play.gate.heard(("a",), (), (104, 110))
    play.requests["a"].num_computed_tokens = 64
    play.step({"a": 266})
    account = play.end("a")
    assert account.fallback is Outcome.FAILED
    assert account.ledger == {Outcome.POOL_HIT: 64, Outcome.FAILED: 256, Outcome.PARTIAL_BLOCK: 10}


def test_a_failed_request_is_not_offered_the_load_again(play: Play) -> None:
    play.arrive("a", 330)
    play.ask("a", 320)
    play.admit("a", 0, 320)
    play.gate.heard(("a",), ("a",), ())
    assert play.ask("a", 320) == 0


def test_a_failed_load_says_nothing_of_the_speed(play: Play) -> None:
    play.arrive("a", 330)
    play.ask("a", 320)
    play.admit("a", 0, 320)
    play.clock.advance(5.0)
    play.gate.heard(("a",), ("a",), ())
    assert play.gate.estimates.legs[0].n == 0


def test_a_failed_synchronous_load_is_computed_in_the_next_step(play: Play) -> None:
    play.arrive("a", 330)
    play.ask("a", 320)
    play.admit("a", 0, 320, asynchronous=False, blocks=range(100, 120))
    play.step({"a": 10}, extra=0.1, failed=(100,))
    play.requests["a"].num_computed_tokens = 0
    play.step({"a": 330})
    account = play.end("a")
    assert account.ledger == {Outcome.FAILED: 320, Outcome.PARTIAL_BLOCK: 10}
    assert account.computed_tokens == 330


def test_a_second_load_waits_for_a_slot(play: Play) -> None:
    play.learn(FAST)
    while play.gate.transfers.budget.free:
        rid = f"holder-{play.gate.transfers.budget.in_flight}"
        play.arrive(rid, 330)
        assert play.ask(rid, 320) == 320
        play.admit(rid, 0, 320)
    play.arrive("a", 330)
    assert play.ask("a", 320) is None
    play.gate.heard(("holder-0",), (), ())
    assert play.ask("a", 320) == 320


def test_a_slot_is_not_waited_for_longer_than_it_is_worth(play: Play) -> None:
    play.learn(FAST)
    while play.gate.transfers.budget.free:
        rid = f"holder-{play.gate.transfers.budget.in_flight}"
        play.arrive(rid, 330)
        play.ask(rid, 320)
        play.admit(rid, 0, 320)
    play.arrive("a", 330)
    assert play.ask("a", 320) is None
    play.clock.advance(0.4)
    assert play.ask("a", 320) == 0
    decision = play.end("a", aborted=True).decision
    assert decision is not None
    assert decision.reason is Reason.BUSY


def test_every_slot_comes_back(play: Play) -> None:
    play.learn(FAST)
    for ending in ("aborted while loading", "aborted before", "not taken"):
        play.arrive(ending, 330)
        assert play.ask(ending, 320) == 320
        if ending == "aborted while loading":
            play.admit(ending, 0, 320)
            play.end(ending, aborted=True)
            play.gate.heard((ending,), (), ())
        elif ending == "aborted before":
            play.end(ending, aborted=True)
        else:
            play.admit(ending, 0, 0)
            play.step({ending: 330})
            play.end(ending)
    assert (play.gate.transfers.budget.in_flight, len(play.gate.transfers)) == (0, 0)


def test_an_aborted_load_teaches_nothing(play: Play) -> None:
    play.arrive("a", 330)
    play.ask("a", 320)
    play.admit("a", 0, 320)
    play.clock.advance(9.0)
    account = play.end("a", aborted=True)
    play.gate.heard(("a",), (), ())
    assert play.gate.estimates.legs[0].n == 0
    assert account.ledger[Outcome.ABORTED] == 330


def test_shadow_watches_and_lets_everything_pass() -> None:
    play = Play(gate={"mode": "shadow"})
    play.learn(SLOW)
    assert play.load("a", 330, 0.64, found=320) == 320
    account = play.end("a")
    assert account.ledger == {Outcome.POOL_HIT: 320, Outcome.PARTIAL_BLOCK: 10}
    assert account.decision is not None
    assert account.decision.reason is Reason.SHADOW
    assert account.notes == ("the gate only watches; it would have computed (slower)",)


def test_shadow_judges_what_happened() -> None:
    play = Play(gate={"mode": "shadow"})
    play.learn(SLOW)
    play.load("a", 330, 0.64, found=320)
    account = play.end("a")
    assert account.recompute_seconds is None
    assert account.lost_seconds == pytest.approx(0.32, rel=0.05)


def test_shadow_never_waits_for_a_slot() -> None:
    play = Play(gate={"mode": "shadow"})
    for number in range(20):
        play.arrive(str(number), 330)
        assert play.ask(str(number), 320) == 320
        play.admit(str(number), 0, 320)


def test_off_is_the_connector_alone() -> None:
    play = Play(gate={"mode": "off", "policy": "never"})
    assert play.load("a", 330, 0.64, found=320) == 320
    account = play.end("a")
    assert account.arm is Arm.OFF
    assert account.decision is None
    assert account.ledger == {Outcome.POOL_HIT: 320, Outcome.PARTIAL_BLOCK: 10}


def test_the_holdout_never_loads() -> None:
    play = Play(gate={"holdout_share": 1, "policy": "always"})
    assert play.load("a", 330, 0, found=320) == 0
    assert play.end("a").arm is Arm.HOLDOUT


def test_the_canary_serves_its_share() -> None:
    play = Play(gate={"mode": "canary", "canary_share": 0.5, "policy": "always"})
    answers = [play.load(f"r{number}", 330, 0.01, found=320) for number in range(40)]
    assert {0, 320} == set(answers)


def test_a_preempted_request_is_not_decided_again(play: Play) -> None:
    play.learn(SLOW)
    play.load("a", 330, 0, found=320)
    assert play.ask("a", 320) == 0
    play.admit("a", 0, 0)
    play.step({"a": 334})
    assert play.end("a").ledger == {Outcome.DECLINED: 320, Outcome.PARTIAL_BLOCK: 10}


def test_a_handoff_passes_whatever_the_policy_says() -> None:
    play = Play(gate={"policy": "never"})
    play.arrive("a", 330, {"do_remote_prefill": True, "remote_engine_id": "p"})
    assert play.ask("a", 330) == 330
    play.admit("a", 0, 330)
    play.clock.advance(4.0)
    play.gate.heard(("a",), (), ())
    play.requests["a"].num_computed_tokens = 329
    play.step({"a": 1})
    account = play.end("a")
    assert account.ledger == {Outcome.HANDOFF: 329, Outcome.PARTIAL_BLOCK: 1}
    assert account.decision is None


def test_a_handoff_says_nothing_of_the_connector_s_speed() -> None:
    play = Play()
    play.arrive("a", 330, {"do_remote_prefill": True})
    play.ask("a", 330)
    play.admit("a", 0, 330)
    play.clock.advance(4.0)
    play.gate.heard(("a",), (), ())
    assert play.gate.estimates.legs[0].n == 0


def test_the_sender_s_half_of_a_handoff_books_its_own_hits() -> None:
    play = Play(gate={"policy": "never"})
    play.arrive("a", 330, {"do_remote_decode": True, "do_remote_prefill": False})
    assert play.ask("a", 320) == 320
    play.admit("a", 0, 320)
    play.gate.heard(("a",), (), ())
    play.step({"a": 10})
    assert play.end("a").ledger == {Outcome.POOL_HIT: 320, Outcome.PARTIAL_BLOCK: 10}


def test_loading_that_costs_is_turned_off() -> None:
    play = Play(gate={"policy": "always", "holdout_share": 0.3})
    notes: list[str] = []
    for number in range(400):
        play.load(f"r{number}", 330, 0.9 + (number % 7) / 100, found=320)
        notes += play.end(f"r{number}").notes
    assert play.gate.terms.policy == "never"
    assert any(note.startswith("loading costs here") for note in notes)


def test_an_exploring_request_finds_out_that_a_connector_has_recovered() -> None:
    play = Play(gate={"explore_share": 1})
    play.learn(SLOW / 50)
    assert play.load("soon", 330, 0, found=320) == 0
    play.clock.advance(61.0)
    assert play.load("later", 330, 0.0032, found=320) == 320
    decision = play.end("later").decision
    assert decision is not None
    assert decision.reason is Reason.EXPLORES_LOAD
    assert decision.end_block == 20


def test_with_two_steps_in_flight_each_is_timed_from_the_end_of_the_last(play: Play) -> None:
    for rid in ("a", "b"):
        play.arrive(rid, 200)
        play.ask(rid, 0)
        play.admit(rid, 0, 0)
    play.gate.step_began({"a": 200})
    play.gate.step_began({"b": 200})
    play.clock.advance(0.2)
    play.gate.step_ended()
    play.clock.advance(0.2)
    play.gate.step_ended()
    assert [play.end(rid).prefill_seconds for rid in ("a", "b")] == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_request_whose_first_step_is_its_last_is_booked_with_that_step(
    play: Play, asynchronous: bool
) -> None:
    play.arrive("a", 330)
    play.ask("a", 320)
    play.admit("a", 0, 320, asynchronous=asynchronous)
    if asynchronous:
        play.gate.heard(("a",), (), ())
    play.gate.step_began({"a": 10})
    play.clock.advance(0.1)
    play.gate.finish("a", aborted=False)
    play.gate.step_ended()
    account = play.accounts["a"]
    assert account.ledger == {Outcome.POOL_HIT: 320, Outcome.PARTIAL_BLOCK: 10}
    assert account.computed_tokens == 10
    assert play.gate.transfers.budget.in_flight == 0


@pytest.mark.parametrize(("setting", "value"), [("mode", "onn"), ("policy", "sometimes")])
def test_a_switch_to_nowhere_is_refused(play: Play, setting: str, value: str) -> None:
    with pytest.raises(InputError, match=value):
        play.gate.change(**{setting: value})


@given(
    prompt=st.integers(1, 400),
    local_blocks=st.integers(0, 12),
    found=st.integers(0, 400),
    mode=st.sampled_from(["off", "shadow", "on"]),
    policy=st.sampled_from(["rule", "always", "never"]),
    asynchronous=st.booleans(),
    handoff=st.booleans(),
    failed=st.none() | st.integers(0, 25),
    stop=st.sampled_from(["early", "loading", "computing", "ready"]),
)
def test_every_token_is_booked_once(
    prompt: int,
    local_blocks: int,
    found: int,
    mode: str,
    policy: str,
    asynchronous: bool,
    handoff: bool,
    failed: int | None,
    stop: str,
) -> None:
    play = Play(gate={"mode": mode, "policy": policy})
    local = min(local_blocks * BLOCK, (prompt - 1) // BLOCK * BLOCK)
    found = min(found, prompt - local)
    play.arrive("a", prompt, {"do_remote_prefill": True} if handoff else None)
    if stop == "early":
        play.end("a", aborted=True)
        return
    answer = play.ask("a", found, local) or 0
    play.admit("a", local, answer, asynchronous=asynchronous, blocks=range(100, 126))
    if stop == "loading":
        play.end("a", aborted=True)
        play.gate.heard(("a",), (), ())
        return
    bad = () if failed is None or not answer else (100 + failed,)
    if asynchronous:
        play.gate.heard(("a",), (), bad)
        bad = ()
    at = min(play.requests["a"].num_computed_tokens, prompt - 1)
    play.requests["a"].num_computed_tokens = at
    if stop == "computing":
        play.gate.step_began({"a": prompt - at})
        play.end("a", aborted=True)
        play.gate.step_ended()
        return
    play.step({"a": prompt - at}, failed=bad)
    if bad:
        # The engine throws the step away and computes what did not come.
        play.requests["a"].num_computed_tokens = local
        play.step({"a": prompt - local})
    play.end("a")
    assert (play.gate.transfers.budget.in_flight, len(play.gate.transfers)) == (0, 0)
