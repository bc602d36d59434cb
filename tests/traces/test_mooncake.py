from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from reading import read

from kvferry.errors import FormatError
from kvferry.traces import open_trace

ROWS = [
    {"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [7, 9, 11]},
    {"timestamp": 3027, "input_length": 1030, "output_length": 6, "hash_ids": [7, 9, 12]},
]


def test_ids_become_dense_and_milliseconds_seconds(lines: Callable[..., Path]) -> None:
    trace = open_trace(lines(ROWS))
    first, second = read(trace)
    assert (trace.format, trace.block_tokens) == ("mooncake", 512)
    assert (first.arrival, second.arrival) == (0.0, 3.027 - 1.0)
    assert (first.blocks, second.blocks) == ((0, 1, 2), (0, 1, 3))
    assert (first.output_tokens, second.input_tokens) == (5, 1030)


def test_further_fields_become_fields(lines: Callable[..., Path]) -> None:
    trace = open_trace(lines([{**row, "type": "text", "priority": 3} for row in ROWS]))
    assert read(trace)[0].fields == (("class", "text"), ("priority", "3"))


def test_a_file_with_parent_chats_has_seconds_and_small_blocks(lines: Callable[..., Path]) -> None:
    rows = [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.5, "input_length": 40, "output_length": 1,
         "type": "text", "turn": 1, "hash_ids": [1, 2, 3]},
        {"chat_id": 2, "parent_chat_id": 1, "timestamp": 63.0, "input_length": 60, "output_length": 1,
         "type": "text", "turn": 2, "hash_ids": [1, 2, 4, 5]},
    ]  # fmt: skip
    trace = open_trace(lines(rows))
    assert [one.arrival for one in read(trace)] == [0.0, 1.5]
    assert trace.block_tokens == 16
    assert set(trace.labels) == {"class", "session"}


def test_bad_rows_are_counted_with_their_lines(lines: Callable[..., Path]) -> None:
    broken = ["{", {"timestamp": 1, "input_length": "many", "hash_ids": []}, {"timestamp": 2}]
    trace = open_trace(lines([ROWS[0], *broken, ROWS[1]]))
    assert len(read(trace)) == 2
    assert [one.line for one in trace.problems.first] == [2, 3, 4]
    assert "input_length" in trace.problems.first[1].message


def test_a_last_line_that_is_still_being_written_is_no_problem(lines: Callable[..., Path]) -> None:
    path = lines(ROWS)
    with path.open("a") as file:
        file.write('{"timestamp": 4000, "input_le')
    trace = open_trace(path)
    assert len(read(trace)) == 2
    assert trace.problems.count == 0


def test_a_size_of_block_that_agrees_with_nothing_is_refused(lines: Callable[..., Path]) -> None:
    rows = [
        {"timestamp": 0, "input_length": 100_000, "output_length": 0, "hash_ids": list(range(n))}
        for n in (1, 2)
    ]
    with pytest.raises(FormatError, match="say --block-tokens"):
        open_trace(lines(rows))


def test_another_size_has_to_be_a_multiple(lines: Callable[..., Path]) -> None:
    path = lines(ROWS)
    with pytest.raises(FormatError, match="multiple"):
        open_trace(path, block_tokens=500)
    assert [one.blocks for one in read(open_trace(path, block_tokens=1024))] == [(0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("name", "requests", "mean_in", "mean_out", "references", "unique"),
    [
        ("conversation_trace.jsonl", 12_031, 12_035.1, 342.6, 288_500, 182_790),
        ("synthetic_trace.jsonl", 3_993, 15_325.5, 149.1, 121_877, 43_924),
    ],
)
def test_the_published_traces(
    public: Path, name: str, requests: int, mean_in: float, mean_out: float, references: int, unique: int
) -> None:
    trace = open_trace(public / name, strict=True)
    chunks = list(trace.chunks())
    assert sum(map(len, chunks)) == requests
    assert round(sum(int(one.input_tokens.sum()) for one in chunks) / requests, 1) == mean_in
    assert round(sum(int(one.output_tokens.sum()) for one in chunks) / requests, 1) == mean_out
    assert sum(len(one.blocks) for one in chunks) == references
    assert max(int(one.blocks.max()) for one in chunks) + 1 == unique
