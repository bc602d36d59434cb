"""Each cause is planted in a trace, and the one recommendation names it."""

from __future__ import annotations

import json
import random
from pathlib import Path

from traffic import BLOCK, Prompt, trace_of

from kvferry.analysis.analyse import Question, analyse
from kvferry.traces import Trace, open_trace

DICE = random.Random(5)


def advice(trace: Trace, **asked: object) -> str:
    return analyse(trace, Question(compiled=False, **asked)).recommendation  # type: ignore[arg-type]


def long(path: str) -> Prompt:
    return path, 0


def log_with_bad_rows(path: Path, rows: int) -> Trace:
    """Two bad rows, unknown fields, and prompts whose last third lies behind their last full block."""
    lines = [
        json.dumps(
            {"timestamp": n * 1000, "input_length": 767, "output_length": 5, "hash_ids": [1, 2], "team": "x"}
        )
        for n in range(rows)
    ]
    lines[6] = lines[6].replace("767", '"many"')
    lines[9] = "{"
    path.write_text("\n".join(lines) + "\n")
    return open_trace(path)


def test_many_bad_rows_come_first(tmp_path: Path) -> None:
    said = advice(log_with_bad_rows(tmp_path / "log.jsonl", 12))
    assert said.startswith("Mend the log first: 2 of 12 rows were left out, the first at line 7")


def test_a_few_bad_rows_hide_no_larger_cause(tmp_path: Path) -> None:
    said = advice(log_with_bad_rows(tmp_path / "log.jsonl", 50))
    assert said.startswith("Use smaller blocks")
    assert "Also, 2 of 50 rows were left out, the first at line 7" in said


def test_one_request_says_nothing() -> None:
    assert advice(trace_of([long("a")])).startswith("One request says nothing of reuse")


def test_a_log_of_prompts_wants_a_tokenizer(tmp_path: Path) -> None:
    row = {"timestamp": 0, "messages": [{"role": "user", "content": "hello"}], "usage": {"prompt_tokens": 9}}
    (tmp_path / "log.jsonl").write_text(f"{json.dumps(row)}\n" * 3)
    assert advice(open_trace(tmp_path / "log.jsonl")).startswith("Say --tokenizer FOLDER")


def test_prompts_that_share_nothing_are_a_matter_of_their_assembly() -> None:
    said = advice(trace_of([long("".join(DICE.choices("abcdefgh", k=12))[::-1]) for _ in range(3)]))
    assert "kvferry trace lint" in said


def test_a_small_cache_wants_room() -> None:
    asked = [long(letter * 8) for _ in range(10) for letter in "abcdef"]
    said = advice(trace_of(asked), capacity_tokens=16 * BLOCK)
    assert said.startswith("Give the cache more room")
    assert f"{46 * BLOCK:,} tokens hold nine tenths" in said or "tokens hold nine tenths" in said


def test_blocks_that_are_too_large() -> None:
    said = advice(trace_of([("a", 3)] * 20))
    assert said.startswith("Use smaller blocks")


def test_hits_on_another_replica() -> None:
    # Long documents, more askers than any one replica may serve: load moves them off what they share.
    asked = [long("a" * 6 + tail * 3) for tail in "bcdefghijklmnopqrstuvwx"]
    said = advice(trace_of(asked), replicas=8)
    assert "lie on another replica" in said


def test_a_trace_that_is_well_kept_needs_nothing() -> None:
    assert advice(trace_of([long("a" * 10)] * 30)).startswith("Nothing to mend")


def test_one_off_blocks_are_not_worth_writing() -> None:
    asked = [long("a" * 20)] * 30 + [long(letter * 30) for letter in "bcdefghijklmnopqrstuvw"]
    assert advice(trace_of(asked)).startswith("Publish on the second touch")


def test_routing_that_gains_more_than_all_that_is_left() -> None:
    asked = [long(letter * 8) for letter in DICE.choices("abcdefghijklmnopqrst", k=100)]
    said = advice(trace_of(asked), replicas=5)
    assert said.startswith("Route by prefix, unless you do: ")
