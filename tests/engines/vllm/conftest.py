"""Replicas that live for a session, over a pool that fails on demand, and what must hold after a fault."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if find_spec("vllm") is not None:
    # Read when vLLM is imported. A kernel compiled for a tiny model costs more than all that it computes.
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", TORCH_COMPILE_DISABLE="1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("OMP_NUM_THREADS", "1")

if TYPE_CHECKING:
    from .faulty import FaultyPool
    from .replicas import Answer, Replica

Truth = Callable[..., "Answer"]
"""What plain vLLM computes, without any cache, in float32."""
_SEEDS = itertools.count(1)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama."""
    from .replicas import save_llama

    return save_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def oracle(model: Path) -> Iterator[Replica]:
    """vLLM with no connector and no prefix cache."""
    from .replicas import Replica

    replica = Replica(model, None, enable_prefix_caching=False)
    yield replica
    replica.close()


@pytest.fixture(scope="session")
def truth(oracle: Replica) -> Truth:
    """Answers of plain vLLM, each computed once."""
    known: dict[tuple[tuple[int, ...], int], Answer] = {}

    def computed(prompt: Sequence[int], answer_tokens: int = 6) -> Answer:
        asked = (tuple(prompt), answer_tokens)
        if asked not in known:
            known[asked] = oracle.ask(prompt, answer_tokens=answer_tokens)
        return known[asked]

    return computed


class Trio:
    """A publishes, B meets the faults, and C, a third one, reads what the pool then holds."""

    def __init__(self, make: Callable[..., Replica], pool: FaultyPool, url: str, truth: Truth) -> None:
        self.pool = pool
        self.url = url
        self.truth = truth
        self.a, self.b, self.c = (make({"pool": url}) for _ in range(3))

    @property
    def all(self) -> tuple[Replica, ...]:
        return (self.a, self.b, self.c)

    def quiet(self) -> bool:
        """Whether nothing is left to do, or to give back."""
        try:
            for replica in self.all:
                replica.settle()
        except TimeoutError:
            return False
        return all(not replica.scheduler.has_unfinished_requests() for replica in self.all)

    def fresh(self) -> None:
        """As after a start: nothing is cached, nothing is pooled, nothing fails."""
        self.pool.heal()
        for replica in self.all:
            replica.forget()
            # What earlier faults have taught the gate must not keep it from the next one.
            cache = replica.connector._scheduler._ferry._cache
            cache.estimates = type(cache.estimates)(len(cache.settings.tiers))
        self.pool.drop(self.pool.keys(), 10.0, ghost=False)
        self.pool.order.clear()

    def published(self, prompt: Sequence[int]) -> list[bytes]:
        """A computes and publishes a prompt: the pool's keys of its blocks, in order."""
        before = len(self.pool.order)
        answer = self.a.ask(prompt)
        assert answer.agrees_with(self.truth(prompt))
        self.a.settle()
        keys = self.pool.order[before:]
        assert len(keys) == len(prompt) // 32
        return keys

    def sound(self, *prompts: Sequence[int]) -> None:
        """What holds after any fault: engines live, books balance, memory is back, the pool is right."""
        self.pool.heal()
        for replica in self.all:
            assert not replica.connector.why_off
        further = prompt_for("further", 100)
        assert self.b.ask(further).agrees_with(self.truth(further))
        for prompt in prompts:
            assert self.b.ask(prompt).agrees_with(self.truth(prompt)), "the local cache is poisoned"
        for replica in self.all:
            replica.settle()
            balanced(replica)
            assert not len(replica.connector._kept)
            assert not replica.connector._scheduler._requests
        for prompt in prompts:
            self.c.forget()
            third = self.c.ask(prompt)
            assert third.agrees_with(self.truth(prompt)), "the pool is poisoned"
            assert third.record is not None
            assert third.record.path == "pool_hit"


def step_until(replica: Replica, reached: Callable[[], bool], seconds: float = 30.0) -> None:
    """Step the engine until something has happened."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "the engine did not get there"
        replica.step()


def revive(replica: Replica) -> None:
    """A scheduler's half as after a start, whatever has become of the last one."""
    connector = replica.connector
    connector._feed.close()
    if connector._scheduler is not None:
        connector._scheduler.close()
    connector.why_off = ""
    connector.set_xfer_handshake_metadata_pp_aware({(0, 0): replica.worker._hello})


def balanced(replica: Replica) -> None:
    """Every prompt token of every request is booked once."""
    for record in replica.records():
        assert sum(record.ledger.values()) == record.prompt_tokens, record.request_id


def prompt_for(name: str, tokens: int) -> list[int]:
    """A prompt that nobody has seen yet."""
    from .replicas import prompt_of

    return prompt_of((name, next(_SEEDS)), tokens)


@pytest.fixture(scope="session")
def _replicas(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Replica]]:
    from .replicas import Replica

    folder = tmp_path_factory.mktemp("records")
    made: list[Replica] = []

    def make(settings: Mapping[str, Any], model: Path = model, **terms: Any) -> Replica:
        made.append(Replica(model, folder, settings, **terms))
        return made[-1]

    yield make
    for replica in made:
        replica.close()


@pytest.fixture
def replica(model: Path, tmp_path: Path) -> Iterator[Callable[..., Replica]]:
    """Makes replicas with settings of a test's own; they end with it."""
    from .replicas import Replica

    made: list[Replica] = []

    def make(settings: Mapping[str, Any], model: Path = model, **terms: Any) -> Replica:
        made.append(Replica(model, tmp_path, settings, **terms))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def _trios() -> list[Trio]:
    return []


@pytest.fixture
def trio(_trios: list[Trio], _replicas: Callable[..., Replica], truth: Truth) -> Iterator[Trio]:
    """Three replicas over one pool, as after a start. What a test has broken is not handed on."""
    from . import faulty

    if not _trios:
        name = f"trio-{next(_SEEDS)}"
        url = f"plugin://{faulty.__name__}/opened?name={name}"
        _trios.append(Trio(_replicas, faulty.make(name), url, truth))
    used = _trios.pop()
    used.fresh()
    yield used
    used.pool.heal()
    if all(not replica.connector.why_off for replica in used.all) and used.quiet():
        _trios.append(used)


@pytest.fixture
def pool_url() -> tuple[FaultyPool, str]:
    """A pool of the test's own, and its address."""
    from . import faulty

    name = f"own-{next(_SEEDS)}"
    return faulty.make(name), f"plugin://{faulty.__name__}/opened?name={name}"
