"""What all formats have in common: order, dense ids, tails, coarser blocks, labels, bad rows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import read

from kvferry.errors import FormatError
from kvferry.traces import Problems, Request, Trace, from_requests
from kvferry.traces.assemble import assemble
from kvferry.traces.row import Row


def trace_of(rows: list[Row], *, block_tokens: int = 4, own: int | None = None, sort: bool = False) -> Trace:
    return Trace(
        path="f",
        format="kvferry",
        block_tokens=block_tokens,
        has_blocks=True,
        read=lambda trace, named: assemble(trace, rows, own_block_tokens=own, sort=sort, named=named),
    )


def row(arrival: float, tokens: int, names: list[object], line: int = 1) -> Row:
    return Row(arrival, tokens, 0, names, "f", line)


@st.composite
def chained(draw: st.DrawFn) -> list[Request]:
    """Requests over a small tree of prefixes: a block's name is the path to it."""
    requests = []
    for number in range(draw(st.integers(1, 25))):
        path = draw(st.lists(st.integers(0, 2), min_size=0, max_size=6))
        names = [tuple(path[: depth + 1]) for depth in range(len(path))]
        tokens = 4 * len(names)
        if names and draw(st.booleans()):
            tokens -= draw(st.integers(0, 3))  # the last one is partial, and has a name
        elif draw(st.booleans()):
            tokens += draw(st.integers(1, 3))  # the partial one has no name
        fields = {"class": draw(st.sampled_from(["a", "b"]))} if draw(st.booleans()) else {}
        requests.append(
            Request(
                number * 0.5,
                tokens,
                draw(st.integers(0, 9)),
                names,
                draw(st.sampled_from([-1, 0, 4])),
                fields,
            )
        )
    return requests


@settings(max_examples=60, deadline=None)
@given(chained())
def test_equal_names_are_equal_ids_and_no_others(requests: list[Request]) -> None:
    seen = read(from_requests(requests, 4))
    ids: dict[object, int] = {}
    for request, one in zip(requests, seen, strict=True):
        for name, block in zip(request.blocks, one.blocks, strict=False):
            assert ids.setdefault(name, block) == block
    tails = [one.blocks[-1] for request, one in zip(requests, seen, strict=True)
             if len(one.blocks) > len(request.blocks)]  # fmt: skip
    assert len(set(ids.values()) | set(tails)) == len(ids) + len(tails)


@settings(max_examples=40, deadline=None)
@given(chained(), st.integers(2, 3))
def test_larger_blocks_keep_whole_prefixes(requests: list[Request], factor: int) -> None:
    rows = [row(one.arrival_seconds, one.input_tokens, list(one.blocks)) for one in requests]
    seen = read(trace_of(rows, block_tokens=4 * factor, own=4))
    for left, first in zip(requests, seen, strict=True):
        for right, second in zip(requests, seen, strict=True):
            shared = sum(a == b for a, b in zip(left.blocks, right.blocks, strict=False))
            common = sum(a == b for a, b in zip(first.blocks, second.blocks, strict=False))
            assert common >= min(shared * 4, left.input_tokens, right.input_tokens) // (4 * factor)
            assert left is right or common * 4 * factor <= shared * 4 + 4 * factor - 1


def test_reading_twice_gives_the_same() -> None:
    trace = from_requests([Request(0.0, 8, 0, ["a", "b"], -1, {"class": "x"}), Request(1.0, 4, 0, ["a"])], 4)
    assert read(trace) == read(trace)
    assert trace.labels == {"class": ["x"]}


def test_a_little_disorder_is_put_right() -> None:
    seen = read(trace_of([row(5.0, 4, ["a"]), row(3.0, 4, ["b"]), row(4.0, 4, ["c"])]))
    assert [one.arrival for one in seen] == [0.0, 1.0, 2.0]
    assert [one.blocks for one in seen] == [(0,), (1,), (2,)]


def much_disorder() -> list[Row]:
    return [*(row(float(number), 0, [], number) for number in range(1, 20_001)), row(0.5, 0, [], 20_001)]


def test_much_disorder_names_the_line_and_the_remedy() -> None:
    with pytest.raises(FormatError, match=r"f:20001: .*kvferry trace convert --sort"):
        read(trace_of(much_disorder()))


def test_sorting_takes_any_disorder() -> None:
    assert len(read(trace_of(much_disorder(), sort=True))) == 20_001


def test_a_partial_block_without_a_name_is_never_seen_again() -> None:
    seen = read(trace_of([row(0.0, 6, ["a"]), row(1.0, 6, ["a"])]))
    assert [one.blocks for one in seen] == [(0, 1), (0, 2)]


def test_runs_and_names_of_one_scope_agree() -> None:
    rows = [
        Row(0.0, 12, 0, [0, 3], "f", 1, 0, True),
        Row(1.0, 12, 0, [0, 1, 2], "f", 2, 0, False),
        Row(2.0, 12, 0, [0, 2, 7, 1], "f", 3, 0, True),
    ]
    assert [one.blocks for one in read(trace_of(rows))] == [(0, 1, 2), (0, 1, 2), (0, 1, 3)]


def test_numbers_with_gaps_become_dense() -> None:
    rows = [Row(0.0, 12, 0, [10, 3], "f", 1, 0, True), Row(1.0, 8, 0, [10, 1, 5, 1], "f", 2, 0, True)]
    assert [one.blocks for one in read(trace_of(rows))] == [(0, 1, 2), (0, 3)]


def test_a_number_far_beyond_the_file_is_refused() -> None:
    with pytest.raises(FormatError, match=r"f:1: .*numbered from 0"):
        read(trace_of([Row(0.0, 4, 0, [1 << 40, 1], "f", 1, 0, True)]))


def test_names_that_are_not_chained_are_refused() -> None:
    with pytest.raises(FormatError, match=r"f:2: block 1 of this request.*whole prefix"):
        read(trace_of([row(0.0, 8, ["a", "x"], 1), row(1.0, 8, ["b", "x"], 2)]))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (
            row(0.0, 9, ["a"], 7),
            "1 blocks, where 9 tokens in blocks of 4 make 3, or 2 without the partial one",
        ),
        (row(float("nan"), 4, ["a"], 7), "finite number"),
        (row(0.0, -4, [], 7), "no amounts"),
        (Row(0.0, 4, 0, ["a"], "f", 7, boundary=-2), "boundary of -2"),
        (Row(0.0, 4, 0, [0], "f", 7, 0, True), "lacks its count"),
        (Row(0.0, 4, 0, [-1, 1], "f", 7, 0, True), "starts at 0 or more"),
    ],
)
def test_a_bad_row_is_counted_with_its_line(bad: Row, said: str) -> None:
    trace = trace_of([row(0.0, 4, ["z"]), bad, row(1.0, 4, ["z"])])
    assert len(read(trace)) == 2
    assert trace.problems.count == 1
    assert str(trace.problems.first[0]).startswith("f:7: ")
    assert said in trace.problems.first[0].message


def test_strict_stops_at_a_bad_row() -> None:
    trace = trace_of([row(0.0, 9, ["a"], 7)])
    trace.problems = Problems(strict=True)
    with pytest.raises(FormatError, match=r"^f:7: 1 blocks"):
        read(trace)


def test_only_the_first_problems_are_kept_and_a_new_reading_forgets_them() -> None:
    trace = trace_of([row(0.0, 9, ["a"], line) for line in range(1, 50)])
    read(trace)
    read(trace)
    assert trace.problems.count == 49
    assert [one.line for one in trace.problems.first] == [1, 2, 3, 4, 5]


def test_new_names_come_with_their_chunk() -> None:
    trace = trace_of([row(0.0, 6, ["a"]), row(1.0, 8, ["a", "b"])])
    assert [names for _, names in trace.named_chunks()] == [["a", None, "b"]]


def test_a_broken_clock_is_a_bad_row() -> None:
    trace = trace_of([row(0.0, 4, ["a"]), row(1e12, 4, ["b"], line=2), row(5.0, 4, ["a"], line=3)])
    assert sum(len(chunk) for chunk in trace.chunks()) == 2
    assert "no trace is longer than ten years" in str(trace.problems.first[0])
