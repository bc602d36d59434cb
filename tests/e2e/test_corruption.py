"""One wrong byte in the pool: it is found, booked, dropped and computed anew, and never attended to."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kvferry.cli.main import main

from .conftest import Pair, new_prompt
from .model import BLOCK_TOKENS
from .served import Answer, eventually

BAD = 3
"""The block that is damaged, of ten."""


@dataclass
class Damage:
    """What happened around a damaged block."""

    pair: Pair
    prompt: list[int]
    first: Answer
    read: Answer


@pytest.fixture
def damage(any_pair: Pair) -> Damage:
    """A published a prompt, a byte of one block was changed, and B has read it."""
    prompt = new_prompt()
    first = any_pair.publish(prompt)
    bad = any_pair.pool.keys(first.record)[BAD]
    assert bad is not None
    any_pair.pool.flip(bad)
    return Damage(any_pair, prompt, first, any_pair.b.ask(prompt))


def test_the_answer_is_the_same(damage: Damage) -> None:
    assert damage.read.token_ids == damage.first.token_ids


def test_it_is_booked_as_corrupt_from_the_bad_block_on(damage: Damage) -> None:
    good = BAD * BLOCK_TOKENS
    assert damage.read.ledger == {"pool_hit": good, "corrupt": 80 - good, "partial_block": 4}
    assert (damage.read.path, damage.read.record.fallback) == ("fallback", "corrupt")


def test_the_record_names_the_block(damage: Damage) -> None:
    (load,) = damage.read.record.loads
    assert (load.good_blocks, load.cause) == (BAD, "corrupt")
    assert f"block {BAD}" in load.detail


def test_the_bad_block_leaves_the_pool(damage: Damage) -> None:
    for _ in eventually("no bad block in the pool"):
        if main(["store", "verify", damage.pair.pool.url]) == 0:
            return


def test_it_is_published_again_and_hit_again(damage: Damage) -> None:
    for _ in eventually("the prompt is loaded whole again"):
        for replica in damage.pair.both:
            replica.forget()
            answer = replica.ask(damage.prompt)
        if answer.path == "pool_hit":
            break
    assert answer.ledger == {"pool_hit": 80, "partial_block": 4}
    assert answer.token_ids == damage.first.token_ids


def test_a_wrong_byte_in_the_header_is_corrupt_too(any_pair: Pair) -> None:
    prompt = new_prompt()
    first = any_pair.publish(prompt)
    bad = any_pair.pool.keys(first.record)[0]
    assert bad is not None
    any_pair.pool.flip(bad, 20)
    read = any_pair.b.ask(prompt)
    assert (read.record.fallback, read.ledger) == ("corrupt", {"corrupt": 80, "partial_block": 4})
    assert read.token_ids == first.token_ids
