"""Blocks that are not interchangeable are never exchanged, whatever the names say."""

from __future__ import annotations

import pytest

from .conftest import Pair, new_prompt
from .served import Served, eventually

Strangers = dict[str, Served]


@pytest.fixture
def published(pair: Pair) -> list[int]:
    """A prompt that the pair's A has published."""
    prompt = new_prompt()
    pair.publish(prompt)
    return prompt


def test_equal_names_with_other_weights_are_refused_by_numerics(strangers: Strangers) -> None:
    stranger = strangers["weights"]
    assert stranger.standing() == "refused"
    why = stranger.state()["namespaces"]["default"]["why"]
    assert "other weights or another computation" in why


def test_who_is_refused_books_incompatible_and_says_numerics(
    strangers: Strangers, published: list[int]
) -> None:
    answer = strangers["weights"].ask(published)
    assert answer.ledger == {"incompatible": 80, "partial_block": 4}
    assert answer.record.alien_fields.startswith("numerics")


def test_who_is_refused_answers_as_if_alone(strangers: Strangers, published: list[int]) -> None:
    stranger = strangers["weights"]
    shared = stranger.ask(published)
    stranger.forget()
    stranger.switch(mode="off")
    alone = stranger.ask(published)
    stranger.switch(mode="on")
    assert shared.token_ids == alone.token_ids


def test_who_is_refused_publishes_nothing(strangers: Strangers, pair: Pair) -> None:
    prompt = new_prompt()
    answers = [strangers["weights"].ask(prompt) for _ in range(3)]
    assert not any(answer.record.published for answer in answers)
    assert pair.b.ask(prompt).path == "cold"


def test_another_dtype_is_incompatible_by_its_name(strangers: Strangers, published: list[int]) -> None:
    answer = strangers["kv_dtype"].ask(published)
    assert answer.ledger == {"incompatible": 80, "partial_block": 4}
    assert "kv_dtype" in answer.record.alien_fields.split(", ")


def test_incompatible_blocks_are_published_in_the_newcomers_own_namespace(
    strangers: Strangers, published: list[int]
) -> None:
    stranger = strangers["kv_dtype"]
    for _ in eventually("the stranger loads what it has published itself"):
        stranger.forget()
        if (answer := stranger.ask(published)).path == "pool_hit":
            break
    assert answer.ledger == {"pool_hit": 80, "partial_block": 4}


def test_another_block_size_shares_nothing(strangers: Strangers, published: list[int]) -> None:
    answer = strangers["block_tokens"].ask(published)
    assert answer.path == "cold"
    assert answer.ledger["partial_block"] == 4


def test_without_the_secret_no_block_is_found(strangers: Strangers, published: list[int]) -> None:
    answer = strangers["secret"].ask(published)
    assert answer.ledger == {"never_published": 80, "partial_block": 4}


def test_what_another_secret_hides_is_not_found_by_us(strangers: Strangers, pair: Pair) -> None:
    prompt = new_prompt()
    first = strangers["secret"].ask(prompt)
    strangers["secret"].ask(prompt)
    pair.pool.wait_for(first.record, 10)
    answer = pair.b.ask(prompt)
    assert answer.ledger == {"never_published": 80, "partial_block": 4}
    assert answer.token_ids == first.token_ids
