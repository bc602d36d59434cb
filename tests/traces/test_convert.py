"""Conversion and anonymity: what stays, what goes, what can be joined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reading import read

from kvferry.errors import ConfigError, FormatError, UsageError
from kvferry.traces import Request, Trace, from_requests, open_trace
from kvferry.traces.convert import anonymize, new_secret, read_secret, write_mooncake, write_own

SECRET = bytes(32)


def keyed(*requests: Request) -> Trace:
    trace = from_requests(requests, 8)
    trace.naming = "keyed"
    return trace


def two() -> Trace:
    return keyed(
        Request(0.0, 20, 3, ["aa", "bb"], 8, {"class": "x", "user": "someone"}),
        Request(1.25, 16, 4, ["aa", "bb"]),
    )


def test_mooncake_and_back(tmp_path: Path) -> None:
    made = from_requests(
        [Request(0.0, 1100, 3, ["a", "b", "c"]), Request(1.25, 1100, 4, ["a", "b", "c"])], 512
    )
    write_mooncake(made, tmp_path / "m.jsonl")
    back = open_trace(tmp_path / "m.jsonl", strict=True)
    assert back.format == "mooncake"
    assert read(back) == read(made)


def test_mooncake_needs_blocks(tmp_path: Path) -> None:
    lengths = from_requests([Request(0.0, 5)], 0, has_blocks=False)
    with pytest.raises(FormatError, match="lengths only"):
        write_mooncake(lengths, tmp_path / "m.jsonl")


def test_the_public_conversations_survive_both_ways(public: Path, tmp_path: Path) -> None:
    source = open_trace(public / "conversation_trace.jsonl")
    write_own(source, tmp_path / "own.jsonl")
    write_mooncake(open_trace(tmp_path / "own.jsonl"), tmp_path / "back.jsonl")
    assert read(open_trace(tmp_path / "back.jsonl")) == read(source)


def test_anonymous_lengths_arrivals_and_reuse_stay(tmp_path: Path) -> None:
    anonymize(two(), tmp_path / "a.jsonl", SECRET)
    seen = read(open_trace(tmp_path / "a.jsonl"))
    assert [(one.arrival, one.input_tokens, one.output_tokens, one.boundary) for one in seen] == [
        (0.0, 20, 3, 8),
        (1.25, 16, 4, -1),
    ]
    assert seen[0].blocks[:2] == seen[1].blocks


def test_anonymous_names_and_fields_go(tmp_path: Path) -> None:
    anonymize(two(), tmp_path / "a.jsonl", SECRET)
    text = (tmp_path / "a.jsonl").read_text()
    assert not any(word in text for word in ('aa"', 'bb"', "someone", "class"))


def test_a_named_field_stays(tmp_path: Path) -> None:
    anonymize(two(), tmp_path / "a.jsonl", SECRET, keep=["class"])
    trace = open_trace(tmp_path / "a.jsonl")
    assert read(trace)[0].fields == (("class", "x"),)


def test_a_field_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'klass'; this trace's fields: class, user"):
        anonymize(two(), tmp_path / "a.jsonl", SECRET, keep=["klass"])


def keys(path: Path) -> list[Any]:
    return [name for _, names in open_trace(path).named_chunks() for name in names]


def test_one_secret_joins_and_another_does_not(tmp_path: Path) -> None:
    for name, secret in (("1", SECRET), ("2", SECRET), ("3", new_secret())):
        anonymize(two(), tmp_path / name, secret)
    assert keys(tmp_path / "1") == keys(tmp_path / "2")
    assert not set(keys(tmp_path / "1")) - {None} & set(keys(tmp_path / "3"))


def test_numbers_of_two_files_are_not_joined(tmp_path: Path, lines: Callable[..., Path]) -> None:
    path = lines([{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [3]}])
    for name in ("1", "2"):
        anonymize(open_trace(path), tmp_path / name, SECRET)
    assert keys(tmp_path / "1") != keys(tmp_path / "2")


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"sixteen bytes or more\n")
    assert len(read_secret(path)) == 32
    path.write_bytes(b"short\n")
    with pytest.raises(ConfigError, match="5 bytes"):
        read_secret(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_secret(tmp_path / "absent")


def broken(tmp_path: Path) -> Trace:
    """A trace that cannot be read to its end."""
    (tmp_path / "broken.jsonl").write_text(
        '{"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": [1]}\n'
        '{"timestamp": 1, "input_length": -1, "output_length": 1, "hash_ids": [1]}\n'
    )
    return open_trace(tmp_path / "broken.jsonl", strict=True)


@pytest.mark.parametrize("write", [write_own, write_mooncake])
def test_what_cannot_be_written_whole_leaves_no_file(
    tmp_path: Path, write: Callable[[Trace, Path], object]
) -> None:
    trace = broken(tmp_path)
    with pytest.raises(FormatError, match=r"broken\.jsonl:2"):
        write(trace, tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.jsonl"]


def test_what_is_to_be_replaced_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("old")
    with pytest.raises(FormatError):
        write_own(broken(tmp_path), tmp_path / "out.jsonl", overwrite=True)
    assert (tmp_path / "out.jsonl").read_text() == "old"


def test_a_field_to_keep_that_is_not_there_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nosuch"):
        anonymize(two(), tmp_path / "out.jsonl", SECRET, keep=["nosuch"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("out", "said"), [("", "is a folder"), ("none/out.jsonl", "there is no folder")])
def test_where_nothing_can_be_written(tmp_path: Path, out: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        write_own(two(), tmp_path / out)
