"""Two replicas publish the same blocks at the same moment: each block is written once, by one of them."""

from __future__ import annotations

import threading

import pytest

from .conftest import Pair, new_prompt
from .model import BLOCK_BYTES
from .served import Answer, Served, eventually


@pytest.fixture
def at_once(any_pair: Pair) -> tuple[Pair, list[int], list[Answer], int]:
    """The pair, a prompt that both published over slow links, their answers, and the bytes written."""
    prompt = new_prompt()
    answers = [replica.ask(prompt) for replica in any_pair.both]
    before = written(any_pair)
    for replica in any_pair.both:
        replica.switch(bytes_per_second=80_000)
    barrier = threading.Barrier(2)

    def publish(replica: Served) -> None:
        barrier.wait(10)
        answers.append(replica.ask(prompt))

    threads = [threading.Thread(target=publish, args=(replica,)) for replica in any_pair.both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    any_pair.pool.wait_for(answers[0].record, 10)
    for _ in eventually("the publication is reported"):
        if written(any_pair) - before >= 10 * BLOCK_BYTES:
            break
    for replica in any_pair.both:
        replica.switch(bytes_per_second=None)
    return any_pair, prompt, answers, written(any_pair) - before


def written(pair: Pair) -> int:
    return sum(int(replica.state()["published_bytes"]) for replica in pair.both)


def test_each_block_is_written_once(at_once: tuple[Pair, list[int], list[Answer], int]) -> None:
    assert at_once[3] == 10 * BLOCK_BYTES


def test_both_answer_alike(at_once: tuple[Pair, list[int], list[Answer], int]) -> None:
    assert len({answer.token_ids for answer in at_once[2]}) == 1


def test_both_load_it_afterwards(at_once: tuple[Pair, list[int], list[Answer], int]) -> None:
    pair, prompt, _, _ = at_once
    hits = []
    for replica in pair.both:
        replica.forget()
        hits.append(replica.ask(prompt))
    assert [hit.ledger for hit in hits] == [{"pool_hit": 80, "partial_block": 4}] * 2
