from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvferry.cache.commands import Loaded
from kvferry.engines.cacheside import Compute, EngineLoad
from kvferry.engines.failopen import FailOpen

IDLE = EngineLoad(0, 0, 0, 8)
CALLS = ["arrive", "ask", "news", "step", "computed", "finish", "next_deadline"]


def broken(pool_cache: Any, method: str) -> Any:
    cache = pool_cache()

    def fail(*args: object) -> None:
        raise OSError("gone")

    setattr(cache, method, fail)
    return cache


@pytest.mark.parametrize("method", CALLS)
def test_an_engine_answers_without_its_broken_cache(
    stacks: Callable[..., Any], prompts: Callable[..., list[int]], pool_cache: Any, method: str
) -> None:
    stack = stacks(broken(pool_cache, method))
    assert stack.run("a", prompts(44)).token_ids == stacks().run("a", prompts(44)).token_ids


@pytest.mark.parametrize("method", CALLS)
def test_an_engine_goes_on_without_its_broken_cache(
    stacks: Callable[..., Any], prompts: Callable[..., list[int]], pool_cache: Any, method: str
) -> None:
    stack = stacks(broken(pool_cache, method))
    stack.run("a", prompts(44))
    assert stack.run("b", prompts(44)).reason == "length"


def test_a_load_that_never_began_is_recomputed_elsewhere(
    stacks: Callable[..., Any], prompts: Callable[..., list[int]], pool_cache: Any
) -> None:
    pool: dict[bytes, bytes] = {}
    cold = stacks(pool_cache(pool)).run("a", prompts(44))
    cache = broken(pool_cache, "begin")
    cache.pool = pool
    stack = stacks(cache)
    assert stack.run("b", prompts(44)).token_ids == cold.token_ids
    assert stack.on_engine(lambda: stack.arena.available) == 64 - 5


def test_a_load_in_flight_ends_unsafely(pool_cache: Any) -> None:
    cache = pool_cache(hold=True)
    cache.begin = lambda *_: None
    guarded = FailOpen(cache)
    guarded.begin("a", 3, None)  # type: ignore[arg-type]
    cache.news = None  # calling it raises
    assert guarded.news() == [Loaded("a", 0, safe=False)]
    assert guarded.news() == []


def test_memory_that_a_store_may_still_read_stays_lent(pool_cache: Any) -> None:
    guarded = FailOpen(broken(pool_cache, "computed"))
    assert guarded.computed("a", 8, True, None) is True  # type: ignore[arg-type]


def test_a_broken_cache_is_asked_nothing_more(pool_cache: Any) -> None:
    cache = broken(pool_cache, "arrive")
    guarded = FailOpen(cache)
    guarded.arrive(None)  # type: ignore[arg-type]
    assert guarded.ask("a", 0, IDLE) == Compute()
    assert cache.named("ask") == []
    assert cache.closed


def test_a_broken_cache_hears_why(pool_cache: Any) -> None:
    cache = broken(pool_cache, "arrive")
    FailOpen(cache).arrive(None)  # type: ignore[arg-type]
    assert cache.named("broke") == [("broke", "OSError: gone")]


def test_the_cause_is_kept(pool_cache: Any) -> None:
    guarded = FailOpen(broken(pool_cache, "arrive"))
    guarded.arrive(None)  # type: ignore[arg-type]
    assert guarded.cause == "OSError: gone"
