from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reading import read

from kvferry.errors import FormatError
from kvferry.traces import open_trace


def entry(t: float, tokens: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "model": "m", "in": tokens, "out": 3, "hash_ids": ids, **more}


SUBAGENT = {
    "t": 30.0,
    "type": "subagent",
    "agent_id": "agent_1",
    "subagent_type": "Explore",
    "duration_ms": 20_000,
    "requests": [entry(0.0, 130, [8, 9]), entry(5.0, 128, [8, 9])],
}


def session(path: Path, *requests: dict[str, Any], block: int = 64) -> Path:
    document = {"id": path.stem, "block_size": block, "hash_id_scope": "local", "requests": list(requests)}
    path.write_text(json.dumps(document))
    return path


def test_only_full_blocks_have_ids_and_the_tail_gets_its_own(tmp_path: Path) -> None:
    trace = open_trace(session(tmp_path / "a.json", entry(0, 130, [1, 2]), entry(9, 130, [1, 2])))
    assert (trace.format, trace.block_tokens) == ("weka", 64)
    assert [one.blocks for one in read(trace)] == [(0, 1, 2), (0, 1, 3)]


def test_a_subagent_begins_where_its_call_was_made(tmp_path: Path) -> None:
    seen = read(
        open_trace(session(tmp_path / "a.json", entry(0, 128, [1, 2]), SUBAGENT, entry(31, 128, [1, 2])))
    )
    assert [one.arrival for one in seen] == [0.0, 10.0, 15.0, 31.0]
    assert [dict(one.fields)["class"] for one in seen] == ["main", "Explore", "Explore", "main"]
    assert dict(seen[1].fields)["session"] == "a/agent_1"
    assert seen[1].blocks[:2] == seen[2].blocks


def test_ids_of_two_sessions_are_never_equal(tmp_path: Path) -> None:
    session(tmp_path / "a.json", entry(0, 128, [1, 2]), entry(2, 128, [1, 2]))
    session(tmp_path / "b.json", entry(1, 128, [1, 2]))
    trace = open_trace(tmp_path)
    assert [one.blocks for one in read(trace)] == [(0, 1), (2, 3), (0, 1)]
    assert any("inside one session" in caveat for caveat in trace.caveats)


def test_a_broken_session_is_counted_and_the_others_are_read(tmp_path: Path) -> None:
    session(tmp_path / "a.json", entry(0, 128, [1, 2]), {"t": 1.0})
    session(tmp_path / "c.json", entry(0, 128, [1, 2]), block=32)
    (tmp_path / "b.json").write_text('{"block_size": 64, "requests": [')
    trace = open_trace(tmp_path)
    assert len(read(trace)) == 1
    said = sorted(str(one) for one in trace.problems.first)
    assert len(said) == 3
    assert "requests[1] has no `in`" in said[0]
    assert "blocks of 32 tokens" in said[2]


def test_a_folder_of_broken_sessions_says_why(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"block_size": 64, "requests": 3}')
    with pytest.raises(FormatError, match="no session can be read here"):
        open_trace(tmp_path)


def test_the_published_sessions(public: Path) -> None:
    trace = open_trace(public / "weka", strict=True)
    assert len(read(trace)) == 732
    assert trace.problems.count == 0


def test_published_subagents_that_ran_side_by_side_begin_together(public: Path) -> None:
    seen = read(open_trace(public / "weka" / "trace_0282.json"))
    first: dict[str, float] = {}
    for one in seen:
        first.setdefault(dict(one.fields)["session"], one.arrival)
    assert {round(value, 3) for name, value in first.items() if "/" in name} == {78.257}
