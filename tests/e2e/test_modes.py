"""Modes and policies, switched on running replicas."""

from __future__ import annotations

import itertools

import pytest

from kvferry.cli.main import main
from kvferry.gate.arms import uniform

from .conftest import Pair, new_prompt
from .served import Refusal, Served, eventually


def test_off_looks_nothing_up(pair: Pair) -> None:
    prompt = new_prompt()
    first = pair.publish(prompt)
    pair.b.switch(mode="off")
    off = pair.b.ask(prompt)
    assert off.ledger == {"not_cacheable": 80, "partial_block": 4}
    assert off.record.decision is None
    assert off.token_ids == first.token_ids


def test_off_publishes_nothing(pair: Pair) -> None:
    pair.a.switch(mode="off")
    prompt = new_prompt()
    answers = [pair.a.ask(prompt) for _ in range(3)]
    assert not any(answer.record.published for answer in answers)


def test_on_again_loads_again(pair: Pair) -> None:
    prompt = new_prompt()
    pair.publish(prompt)
    pair.b.switch(mode="off")
    pair.b.switch(mode="on")
    assert pair.b.ask(prompt).path == "pool_hit"


@pytest.fixture
def shadowed(pair: Pair) -> Pair:
    for replica in pair.both:
        replica.switch(mode="shadow")
    return pair


def test_shadow_shows_the_other_replicas_hit_without_moving_a_block(shadowed: Pair) -> None:
    prompt = new_prompt()
    first = shadowed.a.ask(prompt)
    shadowed.a.ask(prompt)
    for _ in eventually("B sees that A would have published"):
        shadowed.b.forget()
        seen = shadowed.b.ask(prompt)
        if seen.record.offered_tokens:
            break
    assert seen.record.decision is not None
    assert seen.record.decision.reason == "shadow"
    assert seen.record.offered_tokens == 80
    assert seen.record.decision.recompute_seconds > 0
    assert (seen.path, seen.record.loads) == ("declined", ())
    assert seen.ledger == {"declined": 80, "partial_block": 4}
    assert seen.token_ids == first.token_ids
    assert not any(shadowed.pool.keys(first.record))


def test_what_shadow_leaves_in_the_pool_is_no_bad_block(shadowed: Pair) -> None:
    prompt = new_prompt()
    for _ in eventually("B sees that A would have published"):
        for replica in shadowed.both:
            replica.forget()
            answer = replica.ask(prompt)
        if answer.record.offered_tokens:
            break
    assert main(["store", "verify", shadowed.pool.url]) == 0


def test_a_canary_serves_its_share(pair: Pair) -> None:
    prompt = new_prompt()
    first = pair.publish(prompt)
    pair.b.switch(mode="canary")
    paths = {}
    for inside in (True, False):
        rid = next(
            name
            for name in (f"canary-{prompt[0]}-{prompt[1]}-{i}" for i in itertools.count())
            if (uniform(name, "arm") < 0.5) is inside
        )
        pair.b.forget()
        answer = pair.b.ask(prompt, request_id=rid)
        assert answer.token_ids == first.token_ids
        paths[inside] = answer.path
    assert paths == {True: "pool_hit", False: "declined"}


@pytest.mark.parametrize(
    ("policy", "path", "reason"), [("always", "pool_hit", "always"), ("never", "declined", "never")]
)
def test_a_policy_is_switched_between_requests(pair: Pair, policy: str, path: str, reason: str) -> None:
    prompt = new_prompt()
    pair.publish(prompt)
    pair.b.switch(policy=policy)
    answer = pair.b.ask(prompt)
    assert answer.record.decision is not None
    assert (answer.path, answer.record.decision.reason) == (path, reason)


def test_the_rule_declines_a_link_that_is_slower_than_computing(pair: Pair) -> None:
    prompt = new_prompt()
    first = pair.publish(prompt)
    pair.b.switch(bytes_per_second=20_000)
    pair.b.ask(prompt)
    pair.b.switch(policy="rule")
    pair.b.forget()
    answer = pair.b.ask(prompt)
    assert answer.record.decision is not None
    assert (answer.path, answer.record.decision.reason) == ("declined", "slower")
    assert answer.token_ids == first.token_ids


@pytest.mark.parametrize("change", [{"gate.mode": "maybe"}, {"gate.margin": 1}, {"pool.bytes_per_second": 0}])
def test_a_wrong_switch_is_refused_and_changes_nothing(pair: Pair, change: dict[str, object]) -> None:
    before = pair.a.call("GET", "/kvferry/settings")
    with pytest.raises(Refusal) as refused:
        pair.a.post("/kvferry/settings", {"gate.policy": "never", **change})
    assert refused.value.status == 400
    after = pair.a.call("GET", "/kvferry/settings")
    assert (after["gate.mode"], after["gate.policy"]) == (before["gate.mode"], before["gate.policy"])


def test_a_holdout_of_all_never_loads_but_tells_what_loading_would_take(
    pair: Pair, strangers: dict[str, Served]
) -> None:
    prompt = new_prompt()
    first = pair.publish(prompt)
    for _ in range(3):
        strangers["holdout"].forget()
        answer = strangers["holdout"].ask(prompt)
        assert answer.record.decision is not None
        assert answer.record.decision.reason == "holdout"
        assert answer.record.decision.candidate_bytes == 10 * 4096
        assert answer.ledger == {"declined": 80, "partial_block": 4}
        assert answer.token_ids == first.token_ids
