from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvferry.cli.main import main
from kvferry.cli.trace import app
from kvferry.errors import InputError, MissingExtra


def write(path: Path, count: int = 40, shift: int = 0) -> Path:
    """Growing chats of three users over one system prompt, in Mooncake's format."""
    lines = []
    for n in range(count):
        user, turn = n % 3, n // 3
        blocks = [0, *(1000 * (user + 1) + shift + b for b in range(2 * turn + 2))]
        record = {
            "timestamp": 1000 * n,
            "input_length": 512 * len(blocks) - 100,
            "output_length": 9,
            "hash_ids": blocks,
        }
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n")
    return path


def run(*words: str) -> int:
    result = app(list(words), exit_on_error=False, print_error=False, result_action="return_value")
    return int(result)


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(*words, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_the_promised_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "t.jsonl")
    found = shown(
        capsys, "analyze", str(file), "--bytes-per-token", "1000", "--replicas", "3", "--capacity", "20MB"
    )
    assert found["requests"] == 40
    assert found["span_seconds"] == 39.0
    assert {"by_token", "by_block", "by_full_block", "mean_of_requests", "useful_tokens"} <= found[
        "hit"
    ].keys()
    assert {"capacity_bytes", "capacity_tokens", "hit_by_token"} <= found["curve"][0].keys()
    assert {"never_seen", "evicted", "placement", "partial_block"} <= found["misses"].keys()
    assert sum(found["misses"].values()) == found["input_tokens"]
    assert 0 <= found["routing"]["prefix-plus-load"]["hit_by_token"] <= 1
    assert {"seconds", "read_bits_per_second", "write_bits_per_second"} <= found["worst_window"].keys()
    assert found["classes"][0]["requests"] == 40
    assert found["output_tokens"] == 360


def test_the_text_leads_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "t.jsonl")
    assert (
        run("analyze", str(file), "--bytes-per-token", "1000", "--replicas", "3", "--capacity", "20MB") == 0
    )
    text = capsys.readouterr().out
    for part in (
        "by full block",
        "One LRU cache",
        "placement",
        "prefix-plus-load",
        "miss-burst",
        "Classes by root",
    ):
        assert part in text
    assert text.index("replica") < text.index("Hits of a cache")


def test_a_models_config_weighs_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "t.jsonl")
    found = shown(
        capsys, "analyze", str(file), "--model", "qwen3-8b", "--capacity", "40GiB", "--reserved", "4GiB"
    )
    assert found["bytes_per_token"] == 144 * 1024
    assert found["capacity"]["effective_bytes"] == 36 << 30


def test_bytes_and_tokens_are_one_capacity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write(tmp_path / "t.jsonl"))
    one = shown(capsys, "analyze", file, "--bytes-per-token", "100", "--capacity", "819200B")
    other = shown(capsys, "analyze", file, "--bytes-per-token", "100", "--capacity-tokens", "8192")
    assert one["misses"] == other["misses"]
    assert one["marks"][0]["capacity_tokens"] == 8192


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--capacity", "1GiB"], "--bytes-per-token"),
        (["--capacity", "1GiB", "--capacity-tokens", "5000", "--bytes-per-token", "1"], "one of them"),
        (["--model", "qwen3-8b", "--bytes-per-token", "1"], "one of them"),
        (["--reserved", "1GiB"], "--capacity"),
        (["--window", "90s"], "whole minutes"),
        (["--sample", "0"], "--sample"),
        (["--storage-nodes", "0"], "--storage-nodes"),
        (["--by", "team"], "team"),
        (["--workers", "2"], "folder"),
    ],
)
def test_flags_that_make_no_sense(tmp_path: Path, words: list[str], named: str) -> None:
    from kvferry.errors import UsageError

    with pytest.raises(UsageError, match=named):
        run("analyze", str(write(tmp_path / "t.jsonl")), *words)


def test_a_folder_gives_the_same_in_one_process_and_in_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.jsonl", count=10 + number, shift=100 * number)
    one = shown(capsys, "analyze", str(tmp_path), "--each")
    two = shown(capsys, "analyze", str(tmp_path), "--workers", "2")
    assert one == two
    assert [file["requests"] for file in one["files"]] == [10, 11, 12]
    tokens = sum(file["input_tokens"] for file in one["files"])
    hits = sum(file["hit"]["by_token"] * file["input_tokens"] for file in one["files"])
    assert one["hit"]["by_token"] == pytest.approx(hits / tokens)
    assert run("analyze", str(tmp_path), "--each") == 0
    assert "3 files, 33 requests" in capsys.readouterr().out


def test_bad_rows_and_unknown_fields_give_one_recommendation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "t.jsonl")
    rows = file.read_text().splitlines()
    rows[4] = rows[4].replace('"output_length"', '"colour": "red", "output_length"')
    rows[7] = rows[7][:-9]
    file.write_text("\n".join(rows) + "\n")
    found = shown(capsys, "analyze", str(file))
    assert found["problems"]["rows"] == 1
    assert found["problems"]["first"][0]["line"] == 8
    assert "line 8" in found["recommendation"]
    assert run("analyze", str(file)) == 0
    assert "line 8" in capsys.readouterr().out


def test_html_is_written_beside_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly", reason="the extra report is not installed")
    page = tmp_path / "page.html"
    assert run("analyze", str(write(tmp_path / "t.jsonl")), "--html", str(page)) == 0
    assert page.stat().st_size > 1000
    assert str(page) in capsys.readouterr().out


def test_a_page_that_exists_is_kept_and_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("plotly", reason="the extra report is not installed")
    (tmp_path / "page.html").write_text("mine")
    monkeypatch.setattr("kvferry.cli.trace.analyse", lambda *_: pytest.fail("the work was done in vain"))
    with pytest.raises(InputError, match="say --overwrite"):
        run("analyze", str(write(tmp_path / "t.jsonl")), "--html", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text() == "mine"


def test_a_page_that_exists_is_replaced_where_that_is_asked(tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="the extra report is not installed")
    (tmp_path / "page.html").write_text("mine")
    words = ["--html", str(tmp_path / "page.html"), "--overwrite"]
    assert run("analyze", str(write(tmp_path / "t.jsonl")), *words) == 0
    assert (tmp_path / "page.html").stat().st_size > 1000


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trace", "analyze", str(tmp_path / "none.jsonl")]
    assert main(words) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bytes-per-token", "1e300"], "no token's weight"),
        (["--tokenizer", "."], "has no prompts"),
        (["--chat-template", "t.jinja"], "has no prompts"),
        (["--html", "."], "is a folder"),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run("analyze", str(write(tmp_path / "t.jsonl")), *words)


def test_a_missing_chart_library_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingExtra("a page with charts", "report")

    monkeypatch.setattr("kvferry.report.page.library.chart_library", missing)
    monkeypatch.setattr("kvferry.cli.trace.analyse", lambda *_: pytest.fail("the work was done in vain"))
    with pytest.raises(MissingExtra):
        run("analyze", str(write(tmp_path / "t.jsonl")), "--html", str(tmp_path / "t.html"))


@pytest.mark.parametrize("more", [[], ["--json"], ["--html", "page.html"]])
def test_a_file_without_a_good_row_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "t.jsonl", count=3)
    with pytest.raises(InputError, match=r"t\.jsonl has no usable requests: line 1: "):
        run("analyze", "t.jsonl", "--format", "azure", *more)
    assert not (tmp_path / "page.html").exists()


def test_a_folder_without_a_good_row_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "t.jsonl", count=3)
    with pytest.raises(InputError, match="no row of its 1 file can be used"):
        run("analyze", str(tmp_path), "--format", "azure", "--each")


def test_the_first_line_is_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write(tmp_path / "t.jsonl"))
    first = shown(capsys, "analyze", file)["recommendation"]
    run("analyze", file)
    assert capsys.readouterr().out.splitlines()[0] == first


def test_tables_fit_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run("synthesize", "t.jsonl", "--preset", "mixed", "--requests", "300")
    capsys.readouterr()
    run(
        "analyze", "t.jsonl", "--by", "class", "--model", "qwen3-8b", "--replicas", "4", "--capacity", "40GiB"
    )
    # The first line is a sentence, and not cut.
    assert [line for line in capsys.readouterr().out.splitlines()[1:] if len(line) > 100] == []


def test_one_is_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("analyze", str(write(tmp_path / "t.jsonl", count=1)))
    out = capsys.readouterr().out
    assert re.findall(r"(?<![\d.,])1 (?:requests|blocks|tokens)\b", out) == []


def test_what_second_touch_writes_is_set_against_what_is_permitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run("synthesize", "t.jsonl", "--preset", "agents", "--requests", "300")
    capsys.readouterr()
    one, *_ = shown(capsys, "analyze", "t.jsonl", "--by", "class")["classes"]
    all_ = next(policy for policy in one["publication"] if policy["policy"] == "all")
    run("analyze", "t.jsonl", "--by", "class")
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("Publishing on the second touch, against publishing all that boundaries permit")
    assert lines[at + 2].split()[1] == f"{100 * all_['written_tokens'] / one['unique_tokens']:.1f}"
