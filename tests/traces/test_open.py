"""Recognition by content, and what is said of a file that is none."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reading import read

from kvferry.errors import FormatError, UsageError
from kvferry.traces import open_trace, recognise

MOONCAKE = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [0]}


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (MOONCAKE, "mooncake"),
        ({"id": "x", "block_size": 64, "hash_id_scope": "local", "requests": []}, "weka"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "azure"),
        ({"messages": []}, "openai"),
        ({"prompt": "x"}, "openai"),
        ({"request": {"messages": []}, "response": {"usage": {}}}, "openai"),
        ({"custom_id": "1", "body": {"prompt": "x"}}, "openai"),
        ({"kvferry_vllm_events": 1, "block_tokens": 16}, "vllm-events"),
        ({"version": 1, "request_id": "r", "ledger": {}}, "decisions"),
        ({"kvferry_gateway": 1}, "gateway"),
        ({"kvferry_trace": 1, "block_tokens": 16}, "kvferry"),
        ({"messages": [{"role": "user", "content": "x" * 100_000}]}, "openai"),
        ({**MOONCAKE, "hash_ids": list(range(50_000))}, "mooncake"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_format_is_told_by_content(lines: Callable[..., Path], record: Any, name: str) -> None:
    assert recognise(lines([record], "any.name")) == name


def test_a_broken_first_line_does_not_hide_the_format(lines: Callable[..., Path]) -> None:
    assert recognise(lines(['{"timest', MOONCAKE])) == "mooncake"


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ("", "the file is empty"),
        ('{"who": 1, "knows": 2}\n', "its first line has who, knows"),
        ("a,b,c\n1,2,3\n", "neither JSON nor a known CSV: it begins with 'a,b,c'"),
        ('{"who": \n', "no JSON object"),
    ],
)
def test_anything_else_is_an_error_that_says_what_was_seen(tmp_path: Path, content: str, seen: str) -> None:
    path = tmp_path / "x"
    path.write_text(content)
    with pytest.raises(FormatError) as caught:
        open_trace(path)
    assert seen in str(caught.value)
    assert "Known formats: mooncake" in str(caught.value)


def test_a_file_that_is_no_text_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(range(128, 256)) * 8)
    with pytest.raises(FormatError, match="neither JSON nor a known CSV: it is not text"):
        open_trace(tmp_path / "x")


def test_a_folder_without_traces(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="a folder without"):
        open_trace(tmp_path)


def test_a_folder_of_a_format_that_is_read_by_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(MOONCAKE) + "\n")
    with pytest.raises(FormatError, match="file by file"):
        open_trace(tmp_path)


def test_gzip_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(MOONCAKE).encode() + b"\n"))
    assert len(read(open_trace(path))) == 1


def test_a_cut_gzip_is_an_error_not_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(MOONCAKE).encode() * 100)[:-20])
    with pytest.raises(FormatError, match="cannot read this file"):
        open_trace(path)


def test_usage(tmp_path: Path, lines: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="no such file"):
        open_trace(tmp_path / "absent")
    with pytest.raises(UsageError, match="block-tokens"):
        open_trace(lines([MOONCAKE]), block_tokens=0)
    with pytest.raises(UsageError, match="none of mooncake"):
        open_trace(lines([MOONCAKE]), format="other")  # type: ignore[arg-type]
