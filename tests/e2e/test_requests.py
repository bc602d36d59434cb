"""Odd prompts, and what one request may ask for."""

from __future__ import annotations

import http.client
import json
import threading

import pytest

from .conftest import Pair, new_prompt
from .model import BLOCK_BYTES, BLOCK_TOKENS, CONTEXT
from .served import Answer, Refusal, eventually


def test_a_prompt_of_one_token(pair: Pair) -> None:
    answers = [replica.ask([7]) for replica in (pair.a, pair.a, pair.b)]
    assert [answer.ledger for answer in answers] == [{"partial_block": 1}] * 3
    assert len({answer.token_ids for answer in answers}) == 1


def test_a_prompt_of_exactly_one_block_is_computed_for_its_last_token(pair: Pair) -> None:
    prompt = new_prompt(BLOCK_TOKENS)
    first = pair.publish(prompt)
    again = pair.b.ask(prompt)
    assert (again.path, again.ledger) == ("cold", {"not_cacheable": BLOCK_TOKENS})
    assert again.token_ids == first.token_ids


def test_a_prompt_of_whole_blocks_loads_all_but_the_last(pair: Pair) -> None:
    prompt = new_prompt(3 * BLOCK_TOKENS)
    first = pair.publish(prompt)
    hit = pair.b.ask(prompt)
    assert hit.ledger == {"pool_hit": 2 * BLOCK_TOKENS, "not_cacheable": BLOCK_TOKENS}
    assert hit.token_ids == first.token_ids


def test_a_block_that_only_a_longer_prompt_can_use_is_loaded_then(pair: Pair) -> None:
    prompt = new_prompt(BLOCK_TOKENS)
    pair.publish(prompt)
    assert pair.b.ask([*prompt, 5]).ledger == {"pool_hit": BLOCK_TOKENS, "partial_block": 1}


@pytest.mark.parametrize("prompt", [[], ""])
def test_an_empty_prompt_is_refused(pair: Pair, prompt: list[int] | str) -> None:
    with pytest.raises(Refusal, match="prompt") as refused:
        pair.a.post("/v1/completions", {"prompt": prompt})
    assert refused.value.status == 400


def test_a_prompt_longer_than_the_context_is_refused(pair: Pair) -> None:
    with pytest.raises(Refusal, match=f"context of {CONTEXT}") as refused:
        pair.a.ask([1] * (CONTEXT + 1), answer_tokens=1)
    assert refused.value.status == 400


def test_the_longest_prompt_is_shared_like_any_other(pair: Pair) -> None:
    prompt = new_prompt(CONTEXT - 1)
    first = pair.a.ask(prompt, answer_tokens=1)
    pair.a.ask(prompt, answer_tokens=1)
    pair.pool.wait_for(first.record, 63)
    hit = pair.b.ask(prompt, answer_tokens=1)
    assert hit.ledger == {"pool_hit": 504, "partial_block": 7}
    assert hit.token_ids == first.token_ids


def test_nothing_beyond_the_boundary_is_published(pair: Pair) -> None:
    prompt = new_prompt()
    fields = {"boundary_tokens": 35}
    first = pair.a.ask(prompt, fields=fields)
    pair.a.ask(prompt, fields=fields)
    pair.pool.wait_for(first.record, 4)
    assert pair.b.ask(prompt).ledger == {"pool_hit": 32, "never_published": 48, "partial_block": 4}


def test_a_data_class_that_may_not_be_shared_is_not_cacheable(pair: Pair) -> None:
    prompt = new_prompt()
    answers = [pair.a.ask(prompt, fields={"data_class": "secret"}) for _ in range(2)]
    assert answers[0].ledger == {"not_cacheable": 80, "partial_block": 4}
    assert not answers[1].record.published


def test_data_classes_that_may_be_shared_have_namespaces_of_their_own(pair: Pair) -> None:
    prompt = new_prompt()
    pair.publish(prompt)
    assert pair.b.ask(prompt, fields={"data_class": "public"}).path == "cold"


@pytest.mark.parametrize(("most", "loaded"), [(0, 0), (7, 0), (31, 24), (1000, 80)])
def test_no_more_than_max_load_tokens_are_loaded(pair: Pair, most: int, loaded: int) -> None:
    prompt = new_prompt()
    first = pair.publish(prompt)
    answer = pair.b.ask(prompt, fields={"max_load_tokens": most})
    assert answer.ledger.get("pool_hit", 0) == loaded
    assert answer.ledger.get("declined", 0) == 80 - loaded
    assert answer.token_ids == first.token_ids


def test_what_was_on_offer_and_not_allowed_is_declined_not_cold(pair: Pair) -> None:
    prompt = new_prompt()
    pair.publish(prompt)
    assert pair.b.ask(prompt, fields={"max_load_tokens": 0}).path == "declined"


def test_a_load_ends_at_the_requests_deadline(pair: Pair) -> None:
    prompt = new_prompt()
    first = pair.publish(prompt)
    pair.b.switch(bytes_per_second=10_000)
    late = pair.b.ask(prompt, fields={"deadline_seconds": 0.5})
    assert late.record.fallback == "late"
    assert late.record.actual.load_seconds is not None
    assert late.record.actual.load_seconds < 2.0
    assert late.token_ids == first.token_ids


def test_a_salt_keeps_blocks_apart(pair: Pair) -> None:
    prompt = new_prompt()
    first = pair.publish(prompt)
    salted = pair.b.ask(prompt, cache_salt="a user's")
    assert salted.path == "cold"
    assert salted.token_ids == first.token_ids


def test_equal_salts_share(pair: Pair) -> None:
    prompt = new_prompt()
    first = pair.a.ask(prompt, cache_salt="one team's")
    pair.a.ask(prompt, cache_salt="one team's")
    pair.pool.wait_for(first.record, 10)
    assert pair.b.ask(prompt, cache_salt="one team's").path == "pool_hit"


def test_a_decision_id_is_recorded(pair: Pair) -> None:
    assert pair.a.ask(new_prompt(), fields={"decision_id": "router-1"}).record.decision_id == "router-1"


def test_an_unknown_field_is_refused_by_name(pair: Pair) -> None:
    with pytest.raises(Refusal, match="boundary_token") as refused:
        pair.a.ask(new_prompt(), fields={"boundary_token": 8})
    assert refused.value.status == 400


def test_one_id_may_be_used_again_but_not_twice_at_once(pair: Pair) -> None:
    """While its blocks are being published, the memory is lent under the request's id."""
    prompt = new_prompt()
    pair.a.ask(prompt)
    pair.a.switch(bytes_per_second=40_000)
    first = pair.a.ask(prompt, request_id="the same")
    assert first.record.published
    with pytest.raises(Refusal, match="still in use"):
        pair.a.ask(prompt, request_id="the same")
    pair.pool.wait_for(first.record, 10)
    for _ in eventually("the id is free again"):
        try:
            again = pair.a.ask(prompt, request_id="the same")
            break
        except Refusal:
            continue
    assert again.token_ids == first.token_ids


def test_a_client_that_leaves_costs_nothing(pair: Pair) -> None:
    """Its request is aborted, and the replica serves and loads as before."""
    prompt = new_prompt()
    first = pair.publish(prompt)
    pair.b.switch(bytes_per_second=20_000)
    gone: list[Answer | Exception] = []

    def ask_and_leave() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", pair.b.port, timeout=0.5)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "request_id": "left"}))
        try:
            connection.getresponse()
        except TimeoutError as error:
            gone.append(error)
        connection.close()

    thread = threading.Thread(target=ask_and_leave)
    thread.start()
    thread.join(20)
    assert gone
    pair.b.switch(bytes_per_second=None)
    for _ in eventually("the aborted request is recorded"):
        records = pair.b.call("GET", "/kvferry/decisions")["decisions"]
        if any(record["request_id"] == "left" and record["aborted"] for record in records):
            break
    again = pair.b.ask(prompt)
    assert (again.path, again.token_ids) == ("pool_hit", first.token_ids)


def test_many_requests_at_once_for_one_prefix_cost_one_load(pair: Pair) -> None:
    prompt = new_prompt()
    first = pair.publish(prompt)
    pair.b.switch(bytes_per_second=100_000)
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(pair.b.ask(prompt))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [answer.token_ids for answer in answers] == [first.token_ids] * 4
    assert sum(load.bytes for answer in answers for load in answer.record.loads) == 10 * BLOCK_BYTES
