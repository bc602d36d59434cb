from __future__ import annotations

import pytest
from traffic import BLOCK, touched, trace_of

from kvferry.analysis import classes as module
from kvferry.analysis.analyse import Question, analyse
from kvferry.analysis.classes import MOST_SHOWN, OTHERS, ClassCount
from kvferry.analysis.reuse import Stack
from kvferry.analysis.touched import touch
from kvferry.traces import Request, from_requests


def test_roots_are_classes() -> None:
    found = analyse(trace_of([("aa", 0), ("ab", 0), ("bb", 1), ("aa", 0)], seconds=10.0), Question()).classes
    assert [(one.name, one.requests, one.input_tokens) for one in found] == [
        ("root 0", 3, 24),
        ("root 3", 1, 9),
    ]
    first, second = found
    assert first.hit_useful_tokens == (4 + 8) / 24
    assert first.unique_tokens == 3 * BLOCK
    assert first.never_read_tokens == BLOCK
    assert second.never_read_tokens == 2 * BLOCK
    assert (second.interval_p50_seconds, second.ttl_seconds, second.top_tenth_share) == (None, None, None)
    # Reuses after 10, 20 and 30 seconds; a life is rounded up, by less than 19 %.
    assert first.ttl_seconds is not None
    assert 30 <= first.ttl_seconds < 36


def test_deeper_roots_tell_apart_what_one_system_prompt_begins() -> None:
    asked = trace_of([("aaa", 0), ("aab", 0), ("aba", 0)])
    assert [one.requests for one in analyse(asked, Question(root_blocks=2)).classes] == [2, 1]


def test_a_field_is_a_class_and_its_absence_is_one() -> None:
    trace = from_requests(
        [
            Request(arrival_seconds=0.0, input_tokens=8, blocks=["a", "ab"], fields={"team": "x"}),
            Request(arrival_seconds=1.0, input_tokens=8, blocks=["a", "ab"], fields={"team": "y"}),
            Request(arrival_seconds=2.0, input_tokens=4, blocks=["c"]),
        ],
        BLOCK,
    )
    found = {one.name: one for one in analyse(trace, Question(class_field="team")).classes}
    assert {name: one.hit_by_token for name, one in found.items()} == {"x": 0.0, "y": 1.0, "(none)": 0.0}
    assert found["x"].unique_tokens == 8
    assert found["y"].unique_tokens == 0
    by_policy = {one.policy: one for one in found["x"].publication}
    assert (by_policy["all"].written_tokens, by_policy["second-touch"].written_tokens) == (8, 8)
    assert {one.policy: one.served_tokens for one in found["y"].publication}["all"] == 8


def test_many_roots_end_in_one_row() -> None:
    trace = from_requests(
        [
            Request(
                arrival_seconds=float(n),
                input_tokens=4 * (n + 1),
                blocks=[f"{n}/{b}" for b in range(n + 1)],
            )
            for n in range(30)
        ],
        BLOCK,
    )
    found = analyse(trace, Question()).classes
    assert len(found) == MOST_SHOWN
    assert found[-1].name == OTHERS
    assert found[-1].requests == 30 - (MOST_SHOWN - 1)
    assert sum(one.input_tokens for one in found) == sum(4 * (n + 1) for n in range(30))
    assert sum(one.unique_tokens for one in found) == sum(4 * (n + 1) for n in range(30))


def test_roots_beyond_the_bound_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CLASSES", 3)
    count, stack = ClassCount(), Stack(compiled=False)
    requests = [Request(arrival_seconds=float(n), input_tokens=4, blocks=[str(n)]) for n in range(9)]
    for chunk in from_requests(requests, BLOCK).chunks():
        part = touch(chunk, stack, BLOCK, 0)
        assert count.add(part, None, stack.unique).tolist() == [1, 2, 3, 0, 0, 0, 0, 0, 0]


def test_the_most_reused_tenth() -> None:
    # Twenty blocks, two of them reused nine times each, two once.
    asked = [("b" * 18, 0), ("aa", 0)] + [("aa", 0)] * 9 + [("bb", 0)]
    found = {one.requests: one for one in analyse(trace_of(asked), Question()).classes}
    assert found[2].top_tenth_share == 1.0
    assert found[10].top_tenth_share == 0.5


def test_touched_knows_partial_blocks() -> None:
    (part,) = touched(trace_of([("ab", 3)]))
    assert part.tokens.tolist() == [4, 4, 3]
    assert part.full.tolist() == [True, True, False]
