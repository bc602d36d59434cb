from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traffic import BLOCK, Prompt, chains, prompts, touched, trace_of

from kvferry.analysis.reuse import Curve, Stack

PATHS = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")),
]


def oracle(asked: list[Prompt]) -> tuple[list[int], list[int]]:
    """Depths of every access and matched blocks of every request, from a list that is the stack."""
    stack: list[str] = []
    depths, matched = [], []
    for prompt in asked:
        names = chains(prompt)
        found = 0
        for name in names:
            if name not in stack:
                break
            found += 1
        depths += [stack.index(name) + 1 for name in names[:found]] + [0] * (len(names) - found)
        matched.append(found)
        stack = names + [name for name in stack if name not in names]
    return depths, matched


def ids(asked: list[Prompt]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    names: dict[str, int] = {}
    blocks = [names.setdefault(name, len(names)) for prompt in asked for name in chains(prompt)]
    offsets = np.cumsum([0, *(len(chains(prompt)) for prompt in asked)]).astype(np.int64)
    return offsets, np.array(blocks, dtype=np.int64), np.arange(len(asked), dtype=np.float64)


def in_chunks(stack: Stack, asked: list[Prompt], size: int) -> list[tuple[np.ndarray, ...]]:
    offsets, blocks, times = ids(asked)
    found = []
    for start in range(0, len(asked), size):
        part = offsets[start : start + size + 1]
        found.append(stack.access(part - part[0], blocks[part[0] : part[-1]], times[start : start + size]))
    return found


@pytest.mark.parametrize("compiled", PATHS)
@given(asked=prompts, size=st.integers(1, 7))
def test_depths_are_those_of_a_list(compiled: bool, asked: list[Prompt], size: int) -> None:
    found = in_chunks(Stack(compiled=compiled), asked, size)
    depths, matched = oracle(asked)
    assert [int(d) for part in found for d in part[0]] == depths
    assert [int(m) for part in found for m in part[3]] == matched


@pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
@given(
    requests=st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=30),
    size=st.integers(1, 5),
)
def test_both_paths_agree_on_requests_that_are_no_chains(requests: list[list[int]], size: int) -> None:
    both = []
    for compiled in (True, False):
        stack = Stack(compiled=compiled)
        found: list[np.ndarray] = []
        for start in range(0, len(requests), size):
            part = requests[start : start + size]
            offsets = np.cumsum([0, *map(len, part)]).astype(np.int64)
            blocks = np.array([block for one in part for block in one], dtype=np.int64)
            found += stack.access(offsets, blocks, np.arange(start, start + len(part), dtype=np.float64))
        both.append((found, stack.uses[: stack.unique]))
    for ours, theirs in zip(both[0][0], both[1][0], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(both[0][1], both[1][1])


@pytest.mark.parametrize("compiled", PATHS)
def test_positions_are_closed_up_over_and_over(compiled: bool) -> None:
    stack = Stack(compiled=compiled)
    blocks = np.arange(1000, dtype=np.int64)
    offsets = np.array([0, 1000], dtype=np.int64)
    for number in range(300):
        depth, age, before, _ = stack.access(offsets, blocks, np.array([float(number)]))
        if number:
            assert depth.tolist() == list(range(1, 1001))
            assert set(age.tolist()) == {1.0}
            assert set(before.tolist()) == {number}
    # Memory follows different blocks, not accesses.
    assert len(stack._owner) <= 1 << 16


@given(asked=prompts, capacity=st.integers(1, 12))
def test_a_cache_of_any_capacity_hits_what_the_curve_says(asked: list[Prompt], capacity: int) -> None:
    cache: list[str] = []
    hits = useful = 0
    for path, rest in asked if asked else []:
        names = chains((path, rest))
        matched = next((n for n, name in enumerate(names) if name not in cache), len(names))
        hits += min(matched * BLOCK, len(path) * BLOCK + rest)
        useful += min(matched, len(path)) * BLOCK
        cache = (names + [name for name in cache if name not in names])[:capacity]
    curve = Curve(BLOCK)
    for part in touched(trace_of([prompt for prompt in asked if prompt != ("", 0)])):
        curve.add(part.depth, part.tokens, part.full)
    assert curve.hit_tokens(capacity) == hits
    assert curve.useful_tokens(capacity) == useful


@given(asked=prompts)
def test_the_cumulated_curve_is_the_curve(asked: list[Prompt]) -> None:
    curve = Curve(BLOCK)
    for part in touched(trace_of(asked)):
        curve.add(part.depth, part.tokens, part.full)
    hits, useful = curve.cumulated()
    assert hits.tolist() == [curve.hit_tokens(room) for room in range(len(hits))]
    assert useful.tolist() == [curve.useful_tokens(room) for room in range(len(hits))]


def test_enough_is_the_least_capacity() -> None:
    curve = Curve(BLOCK)
    for part in touched(trace_of([("aaaa", 0), ("bbbb", 0), ("aaaa", 0)])):
        curve.add(part.depth, part.tokens, part.full)
    assert curve.hit_tokens(None) == 16
    assert [curve.enough(share) for share in (0.25, 0.5, 0.51, 1.0)] == [5, 6, 7, 8]


@pytest.mark.parametrize("compiled", PATHS)
@given(blocks=st.lists(st.integers(0, 20), max_size=80), capacity=st.integers(1, 20))
def test_a_block_a_request_is_the_lru_of_libcachesim(
    compiled: bool, blocks: list[int], capacity: int
) -> None:
    simulators = pytest.importorskip("libcachesim", reason="libcachesim is not installed")
    cache = simulators.LRU(cache_size=capacity)
    theirs = []
    for block in blocks:
        request = simulators.Request()
        request.obj_id, request.obj_size = block, 1
        theirs.append(cache.get(request))
    dense: dict[int, int] = {}
    names = np.array([dense.setdefault(block, len(dense)) for block in blocks], dtype=np.int64)
    depth, _, _, _ = Stack(compiled=compiled).access(
        np.arange(len(blocks) + 1, dtype=np.int64), names, np.zeros(len(blocks))
    )
    assert [0 < d <= capacity for d in depth.tolist()] == theirs
