"""Replicas that carry lossy blocks share them with each other, and with nobody who wants exact ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvferry.store.codec import BlockLayout, bytes_per_token

from .conftest import SETTINGS, Pair, new_prompt
from .model import BLOCK_TOKENS
from .pools import ValkeyPool
from .served import Recipe, Served, served

CODECS = ("fp8", "int8", "int4")
LAYOUT = BlockLayout(2, 2, BLOCK_TOKENS, 16, "float32")


@pytest.fixture(scope="session")
def lossy(
    over_valkey: Pair, valkey_pool: ValkeyPool, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Served]]:
    """A replica for each codec, on the pool of a pair that carries exact blocks."""
    recipes = {codec: Recipe(tiny, {**SETTINGS, "pool": valkey_pool.url, "codec": codec}) for codec in CODECS}
    with served(tmp_path_factory.mktemp("lossy"), recipes) as replicas:
        yield replicas


def publish(replica: Served, pool: ValkeyPool, prompt: list[int]) -> None:
    first = replica.ask(prompt)
    replica.ask(prompt)
    pool.wait_for(first.record, 10)


@pytest.mark.parametrize("codec", CODECS)
def test_lossy_blocks_are_loaded_again(lossy: dict[str, Served], valkey_pool: ValkeyPool, codec: str) -> None:
    prompt, replica = new_prompt(), lossy[codec]
    publish(replica, valkey_pool, prompt)
    replica.forget()
    assert replica.ask(prompt).ledger == {"pool_hit": 80, "partial_block": 4}


@pytest.mark.parametrize("codec", CODECS)
def test_the_bytes_of_a_decision_are_those_that_moved(
    lossy: dict[str, Served], valkey_pool: ValkeyPool, codec: str
) -> None:
    prompt, replica = new_prompt(), lossy[codec]
    publish(replica, valkey_pool, prompt)
    replica.forget()
    record = replica.ask(prompt).record
    assert record.facts is not None
    assert record.decision is not None
    assert record.facts.bytes_per_token == bytes_per_token(codec, LAYOUT)
    moved = sum(load.bytes for load in record.loads)
    assert 0 <= record.decision.candidate_bytes - moved <= 80


@pytest.mark.parametrize("codec", CODECS)
def test_who_wants_exact_blocks_takes_no_lossy_ones(
    lossy: dict[str, Served], pair: Pair, valkey_pool: ValkeyPool, codec: str
) -> None:
    prompt = new_prompt()
    publish(lossy[codec], valkey_pool, prompt)
    answer = pair.b.ask(prompt)
    assert answer.ledger == {"incompatible": 80, "partial_block": 4}
    assert answer.record.alien_fields == "kv_dtype"


@pytest.mark.parametrize("codec", CODECS)
def test_who_carries_lossy_blocks_takes_no_exact_ones(
    lossy: dict[str, Served], pair: Pair, codec: str
) -> None:
    prompt = new_prompt()
    pair.publish(prompt)
    assert lossy[codec].ask(prompt).ledger == {"incompatible": 80, "partial_block": 4}
