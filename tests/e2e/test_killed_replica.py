"""A replica is killed while it publishes: what it left is whole, and others go on with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvferry.cli.main import main
from kvferry.store.open import open_tier

from .conftest import SETTINGS, Pair, new_prompt, put_right
from .pools import FilesPool, ValkeyPool
from .served import Recipe, Served, eventually, served

BLOCKS = 40


@pytest.fixture(scope="module")
def victims(
    valkey_pool: ValkeyPool,
    files_pool: FilesPool,
    tiny: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Served]]:
    recipes = {
        "valkey": Recipe(tiny, {**SETTINGS, "pool": valkey_pool.url}),
        "files": Recipe(tiny, {**SETTINGS, "pool": files_pool.url}),
    }
    with served(tmp_path_factory.mktemp("victims"), recipes) as replicas:
        yield replicas


@dataclass
class Death:
    """What a killed replica left behind."""

    pair: Pair
    prompt: list[int]
    token_ids: tuple[int, ...]
    left: int
    """Blocks that were in the pool when it had died."""


_DEATHS: dict[str, Death] = {}


@pytest.fixture(params=["valkey", "files"])
def death(request: pytest.FixtureRequest, victims: dict[str, Served]) -> Death:
    """A replica was killed half-way through publishing 40 blocks; once for all tests of a pool."""
    kind = request.param
    pair = put_right(request.getfixturevalue(f"over_{kind}"))
    if kind not in _DEATHS:
        victim, prompt = victims[kind], new_prompt(8 * BLOCKS + 4)
        victim.switch(bytes_per_second=40_000)
        first = victim.ask(prompt)
        victim.ask(prompt)
        pair.pool.wait_for(first.record, BLOCKS // 4)
        victim.kill()
        left = sum(key is not None for key in pair.pool.keys(first.record))
        _DEATHS[kind] = Death(pair, prompt, first.token_ids, left)
    return _DEATHS[kind]


def test_it_died_half_way(death: Death) -> None:
    assert 0 < death.left < BLOCKS


def test_the_store_opens_clean(death: Death) -> None:
    assert main(["store", "verify", death.pair.pool.url]) == 0


@pytest.mark.parametrize("death", ["files"], indirect=True)
def test_the_directory_has_no_rest_and_its_count_is_exact(death: Death, files_pool: FilesPool) -> None:
    tier = open_tier(files_pool.url)
    usage = tier.usage(5.0)
    tier.close()
    sizes = [path.stat().st_size for path in files_pool.folder.glob("blocks/*/*")]
    assert (usage.blocks, usage.used_bytes) == (len(sizes), sum(sizes))
    assert not list(files_pool.folder.glob("tmp/v*"))


def test_another_replica_loads_what_was_published(death: Death) -> None:
    hit = death.pair.b.ask(death.prompt)
    assert hit.ledger["pool_hit"] >= 8 * death.left
    assert hit.token_ids == death.token_ids


def test_another_replica_publishes_the_rest_once_the_leases_are_over(death: Death) -> None:
    time.sleep(float(SETTINGS["timeouts.lease"].rstrip("s")))
    for _ in eventually("all blocks are loaded"):
        death.pair.a.ask(death.prompt)
        death.pair.b.forget()
        hit = death.pair.b.ask(death.prompt)
        if hit.ledger.get("pool_hit") == 8 * BLOCKS:
            break
    assert hit.token_ids == death.token_ids
