"""`kvferry trace lint`: statuses, what is printed, and what is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvferry.cli.trace_lint import lint
from kvferry.errors import FormatError, UsageError

HEAD = " ".join(
    f"Rule {word}: keep to it." for word in ("alpha", "beta", "gamma", "delta") for _ in range(40)
)
NAME = "Kowalczyk"


def write(path: Path, *, dated: bool = False, bad: int = 0) -> Path:
    rows = ["{"] * bad
    for number in range(12):
        day = f"Today is 2026-11-{number + 1:02d}.\n" if dated else ""
        messages = [
            {"role": "system", "content": day + HEAD},
            {"role": "user", "content": f"{NAME} asks for item {number} of the list {number * 7}"},
        ]
        rows.append(json.dumps({"messages": messages, "seed": number}))
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_clean_log_has_nothing_to_mend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(write(tmp_path / "log.jsonl")) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Nothing to mend")


def test_a_dirty_log_ends_in_one_recommendation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(write(tmp_path / "log.jsonl", dated=True, bad=2)) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("Take the date or time out of line 1 of messages[0] (system)")
    assert "log.jsonl:1: not JSON" in out
    assert NAME not in out


def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lint(write(tmp_path / "log.jsonl", dated=True, bad=1), json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["bad_rows"], document["findings"][0]["cause"], document["baseline"]) == (1, "date", None)


def test_text_is_shown_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lint(write(tmp_path / "log.jsonl", dated=True), show_text=True)
    assert "2026-11-0" in capsys.readouterr().out


def test_a_change_that_loses_more_than_the_limit_is_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = write(tmp_path / "old.jsonl"), write(tmp_path / "new.jsonl", dated=True)
    assert lint(new, baseline=old, fail_over=500) == 1
    assert "FAILED: family 1 loses" in capsys.readouterr().out


def test_a_change_that_loses_less_is_status_0(tmp_path: Path) -> None:
    old, new = write(tmp_path / "old.jsonl"), write(tmp_path / "new.jsonl", dated=True)
    assert lint(new, baseline=old, fail_over=5000) == 0


def test_strict_stops_at_a_bad_row(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"log\.jsonl:1: not JSON"):
        lint(write(tmp_path / "log.jsonl", bad=1), strict=True)


def test_a_limit_needs_a_baseline(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--baseline"):
        lint(write(tmp_path / "log.jsonl"), fail_over=500)


def test_a_file_without_prompts_says_what_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "hash_ids": [1]}\n')
    with pytest.raises(FormatError, match="a trace of hashes or lengths holds no text"):
        lint(path)


def test_a_missing_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot read this file"):
        lint(tmp_path / "none.jsonl")


def tokenizer(folder: Path, template: str) -> Path:
    """A tokenizer of words, with a chat template beside it."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra transformers is not installed")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    return folder


TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"


def test_a_tokenizer_and_its_template_give_exact_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lint(write(tmp_path / "log.jsonl", dated=True), tokenizer=tokenizer(tmp_path, TURNS), json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["counting"].startswith("exact")
    assert [(one["cause"], one["place"]) for one in document["findings"]] == [
        ("date", "messages[0] (system)")
    ]


def test_a_date_that_the_template_writes_is_found_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tokenizer(tmp_path, "Today is {{ strftime_now('%d %b %Y') }}.\n" + TURNS)
    path = write(tmp_path / "log.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(
        "".join(json.dumps({**row, "timestamp": 86400 * at}) + "\n" for at, row in enumerate(rows))
    )
    lint(path, tokenizer=folder, json=True)
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["cause"], found["place"]) == ("date", "the chat template's own text")


def test_a_template_needs_its_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--tokenizer"):
        lint(write(tmp_path / "log.jsonl"), chat_template=tmp_path / "chat_template.jinja")


def test_bad_rows_of_the_baseline_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lint(write(tmp_path / "new.jsonl"), baseline=write(tmp_path / "old.jsonl", bad=3))
    assert "3 rows of" in capsys.readouterr().out


def services(path: Path, field: str = "team") -> Path:
    rows = [json.loads(line) for line in write(path, dated=True).read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, field: "ab"[at % 2]}) + "\n" for at, row in enumerate(rows)))
    return path


def test_a_field_that_no_row_has_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--by nofield: no row of .*log\.jsonl .* have seed, team"):
        lint(services(tmp_path / "log.jsonl"), by="nofield")


def test_a_field_that_the_baseline_lacks_is_an_error(tmp_path: Path) -> None:
    old, new = services(tmp_path / "old.jsonl", "group"), services(tmp_path / "new.jsonl")
    with pytest.raises(UsageError, match=r"--by team: no row of .*old\.jsonl"):
        lint(new, by="team", baseline=old, fail_over=5000)


def test_a_field_that_some_rows_have_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = services(tmp_path / "log.jsonl")
    path.write_text(path.read_text() + json.dumps({"prompt": "none"}) + "\n")
    assert lint(path, by="team") == 0
    assert "lost in 11 requests, present in: b (6), a (5)" in capsys.readouterr().out
