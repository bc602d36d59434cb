from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traffic import BLOCK, Prompt, chains, prompts, touched, trace_of

from kvferry.analysis.policies import SIMULATED, Simulated, simulate
from kvferry.analysis.reuse import Curve
from kvferry.errors import UsageError


def run(policy: str, asked: list[Prompt], room: int) -> Simulated:
    cache = simulate(policy, room)
    for part in touched(trace_of(asked)):
        cache.add(part)
    cache.finish()
    return cache


@given(asked=prompts, room=st.integers(1, 12))
def test_lru_by_simulation_is_lru_by_the_curve(asked: list[Prompt], room: int) -> None:
    curve = Curve(BLOCK)
    for part in touched(trace_of(asked)):
        curve.add(part.depth, part.tokens, part.full)
    # Where a prompt is longer than the cache, the store keeps what it had of it.
    if all(len(chains(prompt)) <= room for prompt in asked):
        assert run("lru", asked, room).hit_tokens == curve.hit_tokens(room)


@given(asked=prompts, room=st.integers(1, 12))
def test_no_policy_hits_more_than_belady(asked: list[Prompt], room: int) -> None:
    bound = run("belady", asked, room)
    for policy in SIMULATED:
        assert run(policy, asked, room).useful_tokens <= bound.useful_tokens


@settings(max_examples=40)
@given(
    asked=st.lists(st.tuples(st.text("ab", min_size=1, max_size=2), st.just(0)), max_size=7),
    room=st.integers(1, 3),
)
def test_belady_is_the_best_of_all_choices(asked: list[Prompt], room: int) -> None:
    best = {frozenset[str](): 0}
    for prompt in asked:
        names = chains(prompt)
        following: dict[frozenset[str], int] = {}
        for held, hits in best.items():
            hits += next((n for n, name in enumerate(names) if name not in held), len(names)) * BLOCK
            whole = held | set(names)
            for count in range(min(room, len(whole)) + 1):
                for kept in combinations(sorted(whole), count):
                    following[frozenset(kept)] = max(hits, following.get(frozenset(kept), 0))
        best = following
    assert run("belady", asked, room).hit_tokens == max(best.values())


@pytest.mark.parametrize("policy", SIMULATED)
def test_with_room_for_all_every_policy_hits_all(policy: str) -> None:
    asked = [("aab", 1), ("aab", 1), ("ab", 0), ("aab", 2)]
    cache = run(policy, asked, 50)
    assert (cache.hit_tokens, cache.useful_tokens) == (13 + 4 + 12, 12 + 4 + 12)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="clairvoyant"):
        simulate("clairvoyant", 5)
