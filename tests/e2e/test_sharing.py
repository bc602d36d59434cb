"""One replica publishes, another loads: the same answer, booked once, recorded, and told by `why`."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvferry.cli.main import main

from .conftest import Pair, new_prompt
from .model import BLOCK_BYTES, BLOCK_TOKENS
from .served import Answer

BLOCKS = 10
TOKENS = BLOCKS * BLOCK_TOKENS


@pytest.fixture
def shared(any_pair: Pair) -> tuple[Answer, Answer]:
    """The first answer of A, and B's to the same prompt after A has published it."""
    prompt = new_prompt()
    first = any_pair.publish(prompt)
    return first, any_pair.b.ask(prompt)


def test_the_first_replica_computes(shared: tuple[Answer, Answer]) -> None:
    first, _ = shared
    assert (first.path, first.ledger) == ("cold", {"never_published": TOKENS, "partial_block": 4})


def test_the_second_loads_what_the_first_published(shared: tuple[Answer, Answer]) -> None:
    _, hit = shared
    assert (hit.path, hit.ledger) == ("pool_hit", {"pool_hit": TOKENS, "partial_block": 4})


def test_both_answer_alike(shared: tuple[Answer, Answer]) -> None:
    first, hit = shared
    assert first.token_ids == hit.token_ids


def test_the_load_is_recorded_with_its_bytes(shared: tuple[Answer, Answer]) -> None:
    _, hit = shared
    (load,) = hit.record.loads
    assert (load.tier, load.good_blocks, load.bytes) == ("pool", BLOCKS, BLOCKS * BLOCK_BYTES)


def test_what_was_asked_once_is_not_published(any_pair: Pair) -> None:
    prompt = new_prompt()
    any_pair.a.ask(prompt)
    assert any_pair.b.ask(prompt).path == "cold"


def test_a_second_question_about_a_prefix_publishes_the_prefix_alone(pair: Pair) -> None:
    prefix = new_prompt(TOKENS)
    pair.a.ask([*prefix, *range(20)])
    second = pair.a.ask([*prefix, *range(100, 120)])
    assert second.record.published == ((0, BLOCKS),)


def test_a_hit_on_part_of_a_prompt_computes_the_rest(any_pair: Pair) -> None:
    prefix = new_prompt(TOKENS)
    any_pair.publish(prefix)
    longer = [*prefix, *range(30)]
    hit = any_pair.b.ask(longer)
    any_pair.b.forget()
    any_pair.b.switch(mode="off")
    assert hit.ledger == {"pool_hit": TOKENS, "never_published": 24, "partial_block": 6}
    assert hit.token_ids == any_pair.b.ask(longer).token_ids


def test_local_and_pool_hits_are_kept_apart(pair: Pair) -> None:
    prompt = new_prompt()
    pair.publish(prompt)
    pair.b.ask(prompt[: 4 * BLOCK_TOKENS + 2])
    hit = pair.b.ask(prompt)
    assert hit.ledger == {"device_hit": 32, "pool_hit": 48, "partial_block": 4}


def test_chats_share_too(pair: Pair) -> None:
    number = new_prompt(2)
    body = {
        "messages": [{"role": "user", "content": f"{number[0]:05d} {'a shared document ' * 4}"}],
        "max_tokens": 4,
    }
    answers = [replica.post("/v1/chat/completions", body) for replica in (pair.a, pair.a)]
    record = answers[0]["kvferry"]["decision"]
    for _ in range(100):
        pair.b.forget()
        answers.append(pair.b.post("/v1/chat/completions", body))
        if answers[-1]["kvferry"]["decision"]["path"] == "pool_hit":
            break
    assert answers[-1]["kvferry"]["decision"]["path"] == "pool_hit", record
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1


def test_every_request_is_recorded_where_why_finds_it(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = new_prompt()
    pair.publish(prompt)
    hit = pair.b.ask(prompt)
    assert main(["why", str(records_of(pair)), hit.record.request_id]) == 0
    story = capsys.readouterr().out
    assert "pool_hit" in story.splitlines()[0]
    assert "pool: blocks 0-9, 10 usable, 40 KiB" in story
    assert "pool_hit 80 + partial_block 4 = 84 tokens" in story


def test_nobody_writes_a_sound_block_twice(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = new_prompt()
    pair.publish(prompt)
    before = [replica.state()["published_bytes"] for replica in pair.both]
    for replica in (pair.b, pair.b, pair.a):
        replica.forget()
        replica.ask(prompt)
    assert [replica.state()["published_bytes"] for replica in pair.both] == before


def records_of(pair: Pair) -> Path:
    return pair.a.log.parent / "records"
