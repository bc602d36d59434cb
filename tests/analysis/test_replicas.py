from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traffic import BLOCK, Prompt, chains, prompts, trace_of

from kvferry.analysis.replicas import ROUTINGS, Replicas
from kvferry.errors import UsageError


def run(
    asked: list[Prompt], routing: str, replicas: int, room: int | None, **options: object
) -> list[list[int]]:
    caches = Replicas(routing, replicas, room, BLOCK, **options)  # type: ignore[arg-type]
    found: list[list[int]] = [[], [], []]
    for chunk in trace_of(asked).chunks():
        for column, part in zip(
            found, caches.send(chunk.offsets, chunk.blocks, chunk.input_tokens), strict=True
        ):
            column += part.tolist()
    return found


@pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
@pytest.mark.parametrize("routing", ROUTINGS)
@given(asked=prompts, replicas=st.integers(1, 5), room=st.none() | st.integers(1, 9))
def test_both_paths_agree(routing: str, asked: list[Prompt], replicas: int, room: int | None) -> None:
    ours, theirs = (run(asked, routing, replicas, room, compiled=compiled) for compiled in (True, False))
    assert ours == theirs


@given(asked=prompts, replicas=st.integers(1, 4), room=st.integers(1, 9))
def test_every_replica_is_an_lru_cache_of_its_own(asked: list[Prompt], replicas: int, room: int) -> None:
    chosen, held, most = run(asked, "round-robin", replicas, room, compiled=False)
    caches: list[list[str]] = [[] for _ in range(replicas)]
    for number, (path, rest) in enumerate(asked):
        names = chains((path, rest) if path or rest else ("", 1))
        matched = [next((n for n, x in enumerate(names) if x not in c), len(names)) for c in caches]
        assert chosen[number] == number % replicas
        assert held[number] == matched[chosen[number]]
        assert most[number] == max(matched)
        cache = caches[chosen[number]]
        cache[:] = (names + [name for name in cache if name not in names])[:room]


def test_longest_prefix_follows_the_prefix_and_spreads_the_rest() -> None:
    chosen, _, _ = run(
        [("aa", 0), ("bb", 0), ("aaa", 0), ("bbb", 0)], "longest-prefix", 2, None, compiled=False
    )
    assert chosen == [0, 1, 0, 1]


def test_prefix_plus_load_leaves_a_replica_that_has_computed_too_much() -> None:
    # 24 tokens computed at weight one half outweigh a match of 8, not one of 16.
    asked = [("aabbab", 0), ("aab", 0)]
    assert run(asked, "prefix-plus-load", 2, None, compiled=False)[0] == [0, 1]
    asked = [("aabbab", 0), ("aabba", 0)]
    assert run(asked, "prefix-plus-load", 2, None, compiled=False)[0] == [0, 0]


def test_random_is_repeatable_by_its_seed() -> None:
    asked = [("ab", 0)] * 40
    one, same, other = (run(asked, "random", 4, 5, seed=seed, compiled=False) for seed in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize(("routing", "replicas"), [("nearest", 2), ("random", 0), ("random", 65)])
def test_what_cannot_be_compared_is_refused(routing: str, replicas: int) -> None:
    with pytest.raises(UsageError):
        Replicas(routing, replicas, 10, BLOCK)


def test_load_is_what_was_computed() -> None:
    caches = Replicas("round-robin", 2, None, BLOCK, compiled=False)
    for chunk in trace_of([("aa", 1), ("bb", 0), ("aa", 2)]).chunks():
        caches.send(chunk.offsets, chunk.blocks, chunk.input_tokens)
    np.testing.assert_array_equal(caches.load, [9 + 2, 8])
