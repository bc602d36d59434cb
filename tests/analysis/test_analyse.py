from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traffic import BLOCK, Prompt, prompts, trace_of

from kvferry.analysis.analyse import Question, analyse
from kvferry.analysis.result import Analysis
from kvferry.errors import UsageError
from kvferry.traces import Request, from_requests

TWO = Question(bytes_per_token=10.0, replicas=2, capacity_tokens=16, compiled=False)


@given(asked=prompts)
def test_any_trace_goes_through_and_back_as_json(asked: list[Prompt]) -> None:
    found = analyse(trace_of(asked), TWO)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Analysis).requests == len(asked)
    assert found.recommendation


def test_both_paths_give_one_result() -> None:
    pytest.importorskip("numba", reason="numba is not installed")
    trace = trace_of([("aab", 1), ("aba", 0), ("aab", 1), ("bb", 2)] * 5)
    assert analyse(trace, TWO) == analyse(trace, replace(TWO, compiled=True))


@given(asked=prompts, room=st.integers(1, 10))
def test_points_of_the_curve_are_caches_of_that_size(asked: list[Prompt], room: int) -> None:
    found = analyse(trace_of(asked), Question(capacity_tokens=room * BLOCK, compiled=False))
    ratios = [point.hit_by_token for point in found.curve]
    assert ratios == sorted(ratios)
    if asked:
        assert room * BLOCK in {point.capacity_tokens for point in found.curve}
        assert found.hit is not None
        assert ratios[-1] <= found.hit.by_token + 1e-12


def test_lengths_only_answer_what_they_can() -> None:
    trace = from_requests(
        [Request(arrival_seconds=0.0, input_tokens=10, output_tokens=3)], 0, has_blocks=False
    )
    found = analyse(trace, Question(bytes_per_token=1.0))
    assert (found.requests, found.input_tokens, found.output_tokens) == (1, 10, 3)
    assert (found.hit, found.misses, found.curve, found.flows) == (None, None, (), None)
    assert found.cannot


def test_without_a_weight_there_are_no_bytes() -> None:
    found = analyse(trace_of([("aa", 0)]), Question())
    assert found.worst_window is None
    assert found.unique_bytes is None
    assert any("--bytes-per-token" in one for one in found.cannot)


@pytest.mark.parametrize(
    ("question", "named"),
    [
        (Question(class_field="team"), "team"),
        (Question(capacity_tokens=3), "3 tokens hold no block"),
        (Question(policies=("lru",)), "--capacity"),
        (Question(policies=("mru",), capacity_tokens=16), "mru"),
        (Question(replicas=65), "65"),
    ],
)
def test_questions_that_make_no_sense(question: Question, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        analyse(trace_of([("aa", 0)]), question)


def test_policies_are_points_at_the_capacity_and_the_pool() -> None:
    found = analyse(
        trace_of([("aab", 1)] * 3),
        Question(capacity_tokens=16, replicas=2, policies=("lru", "belady"), compiled=False),
    )
    assert [(one.policy, one.capacity_tokens) for one in found.policies] == [
        ("lru", 16), ("belady", 16), ("lru", 32), ("belady", 32)
    ]  # fmt: skip
    assert {one.hit_by_token for one in found.policies} == {26 / 39}
