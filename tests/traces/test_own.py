"""kvferry's own format: what is written is read back, by numbers and by keys, from whole and cut files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import read

from kvferry.errors import FormatError, UsageError
from kvferry.traces import Request, Trace, from_requests, open_trace
from kvferry.traces.convert import write_own


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    made = []
    for number in range(draw(st.integers(1, 20))):
        path = draw(st.lists(st.integers(0, 2), max_size=6))
        names = ["/".join(map(str, path[: depth + 1])) for depth in range(len(path))]
        tokens = 8 * len(names) + draw(st.integers(0, 7))
        fields = {"class": draw(st.sampled_from(["a", "b"]))} if draw(st.booleans()) else {}
        made.append(
            Request(number / 3, tokens, draw(st.integers(0, 99)), names, draw(st.integers(-1, 40)), fields)
        )
    return made


def source(made: list[Request], naming: str = "keyed") -> Trace:
    trace = from_requests(made, 8)
    trace.naming = naming  # type: ignore[assignment]
    return trace


@settings(max_examples=50, deadline=None)
@given(requests(), st.sampled_from(["keyed", "local", "plain"]))
def test_a_round_trip_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, made: list[Request], naming: str
) -> None:
    path = tmp_path_factory.mktemp("own") / "t.jsonl"
    trace = source(made, naming)
    written = write_own(trace, path)
    back = open_trace(path, strict=True)
    assert read(back) == read(trace)
    assert back.block_tokens == 8
    assert back.naming == ("keyed" if naming == "keyed" else "local")
    assert written.requests == len(made)


@settings(max_examples=30, deadline=None)
@given(requests())
def test_keys_go_along(tmp_path_factory: pytest.TempPathFactory, made: list[Request]) -> None:
    path = tmp_path_factory.mktemp("own") / "t.jsonl"
    write_own(source(made), path)
    names = [name for _, new in open_trace(path).named_chunks() for name in new]
    assert names == [name for _, new in source(made).named_chunks() for name in new]


@settings(max_examples=30, deadline=None)
@given(requests(), st.integers(2, 4))
def test_larger_blocks_are_the_same_from_file_and_from_memory(
    tmp_path_factory: pytest.TempPathFactory, made: list[Request], factor: int
) -> None:
    path = tmp_path_factory.mktemp("own") / "t.jsonl"
    write_own(source(made), path)
    back = read(open_trace(path, block_tokens=8 * factor))
    shares = [[sum(a == b for a, b in zip(x.blocks, y.blocks, strict=False)) for y in back] for x in back]
    for one, left in zip(shares, made, strict=True):
        for share, right in zip(one, made, strict=True):
            common = sum(a == b for a, b in zip(left.blocks, right.blocks, strict=False)) * 8
            if left is not right:
                assert common // (8 * factor) <= share <= -(-common // (8 * factor))


def test_names_that_tell_of_prompts_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_own(source([Request(0.0, 8, 0, ["telling"])], "plain"), path)
    assert "telling" not in path.read_text()


def test_two_keyed_files_are_joined_by_their_keys(tmp_path: Path) -> None:
    write_own(source([Request(0.0, 16, 0, ["a", "b"]), Request(2.0, 12, 0, ["a"])]), tmp_path / "1.jsonl")
    write_own(
        source([Request(0.0, 24, 0, ["a", "b", "c"]), Request(1.0, 12, 0, ["a"])]), tmp_path / "2.jsonl"
    )
    seen = read(open_trace(tmp_path))
    assert [one.blocks for one in seen] == [(0, 1), (0, 1, 2), (0, 3), (0, 4)]


def test_two_files_without_keys_share_nothing(tmp_path: Path) -> None:
    for name in ("1.jsonl", "2.jsonl"):
        write_own(source([Request(0.0, 8, 0, ["a"])], "local"), tmp_path / name)
    trace = open_trace(tmp_path)
    assert [one.blocks for one in read(trace)] == [(0,), (1,)]
    assert "cannot be seen" in trace.caveats[0]


def test_a_file_cut_anywhere_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    made = [Request(float(number), 12, 0, ["a"], -1, {"class": "x"}) for number in range(8)]
    write_own(source(made), path)
    content = path.read_bytes()
    header = content.index(b"\n") + 1
    for end in range(header, len(content) + 1):
        path.write_bytes(content[:end])
        trace = open_trace(path, strict=True)
        # A line without its end counts where it is whole.
        whole = content[header:end].count(b"\n") + (
            content[end - 1 : end] == b"}" and content[end : end + 1] == b"\n"
        )
        assert len(read(trace)) == whole


def test_a_lost_line_does_not_spoil_those_behind(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    made = [Request(0.0, 8, 0, ["a"]), Request(1.0, 8, 0, ["b"]), Request(2.0, 8, 0, ["a"])]
    write_own(source(made), path)
    lines = path.read_text().splitlines()
    lines[2] = lines[2][:-4]
    path.write_text("\n".join(lines) + "\n")
    trace = open_trace(path)
    assert [one.blocks for one in read(trace)] == [(0,), (0,)]
    assert [one.line for one in trace.problems.first] == [3]


def test_a_trace_of_lengths(tmp_path: Path) -> None:
    trace = from_requests([Request(0.0, 100, 5), Request(1.0, 7)], 0, has_blocks=False)
    write_own(trace, tmp_path / "t.jsonl")
    back = open_trace(tmp_path / "t.jsonl")
    assert not back.has_blocks
    assert [one.input_tokens for one in read(back)] == [100, 7]


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_own(source([]), path)
    with pytest.raises(UsageError, match="--overwrite"):
        write_own(source([]), path)
    write_own(source([]), path, overwrite=True)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"kvferry_trace": 2, "block_tokens": 16}) + "\n")
    with pytest.raises(FormatError, match="version 2; this one reads 1"):
        open_trace(path)
