from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reading import read

from kvferry.errors import FormatError
from kvferry.runs.decisions import decode_record
from kvferry.traces import open_trace
from kvferry.traces.decisions import AskedRecord

GOLDEN = Path(__file__).parents[1] / "golden" / "decisions.jsonl"


def record(arrival: float, tokens: int, keys: list[str], **more: Any) -> dict[str, Any]:
    return {
        "version": 1, "request_id": "r", "replica": "A", "arrival": arrival, "tenant_class": "default",
        "prompt_tokens": tokens, "block_tokens": 16, "keys": keys, "ledger": {}, **more,
    }  # fmt: skip


def test_records_of_real_replicas() -> None:
    trace = open_trace(GOLDEN, strict=True)
    records = [decode_record(line) for line in GOLDEN.read_bytes().splitlines()]
    seen = read(trace)
    assert sorted(one.input_tokens for one in seen) == sorted(one.prompt_tokens for one in records)
    assert set(trace.labels) == {"tenant_class", "replica"}


def test_the_fields_read_here_are_those_of_the_record() -> None:
    from kvferry.runs.decisions import DecisionRecord

    assert set(AskedRecord.__struct_fields__) <= set(DecisionRecord.__struct_fields__)


def test_a_run_directory_and_a_folder_of_them(tmp_path: Path) -> None:
    for replica, arrival in (("a", 5.0), ("b", 4.0)):
        folder = tmp_path / replica
        folder.mkdir()
        lines = [record(arrival, 32, ["k1", "k2"]), record(arrival + 2, 20, ["k1"])]
        (folder / "decisions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert len(read(open_trace(tmp_path / "a"))) == 2
    assert [one.blocks for one in read(open_trace(tmp_path))] == [(0, 1), (0, 1), (0, 2), (0, 3)]


def test_a_prompt_that_was_not_looked_up_is_a_bad_row(lines: Callable[..., Path]) -> None:
    trace = open_trace(lines([record(0.0, 32, ["a", "b"]), record(1.0, 40, []), record(2.0, 8, [])]))
    assert len(read(trace)) == 2
    assert "not looked up" in trace.problems.first[0].message


def test_another_size_of_block_is_a_bad_row(lines: Callable[..., Path]) -> None:
    trace = open_trace(lines([record(0.0, 32, ["a", "b"]), record(1.0, 32, ["a"], block_tokens=32)]))
    assert len(read(trace)) == 1
    assert trace.problems.count == 1


def test_no_record_at_all(lines: Callable[..., Path]) -> None:
    path = lines([{"version": 1, "ledger": {}}], "decisions.jsonl")
    with pytest.raises(FormatError, match="no decision record"):
        open_trace(path)
