"""Content of prompts is in no result unless it was asked for."""

from __future__ import annotations

import json

import msgspec
import pytest
from planting import Row, clean, prose, result_of

SECRET = "Kowalczyk"


def log() -> list[Row]:
    rows = clean(1)
    for number, row in enumerate(rows):
        inner = {f"{SECRET}b": 2, "a": 1} if number % 2 else {"a": 1, f"{SECRET}b": 2}
        client = f"Client {SECRET} {prose(number % 5, 5)} since 2026-11-{number + 1:02d}\n"
        row["messages"][0]["content"] = (
            json.dumps({SECRET: inner}) + "\n" + client + row["messages"][0]["content"]
        )
    return rows


def test_nothing_of_a_prompt_is_told() -> None:
    result = result_of(log())
    assert result.findings
    assert SECRET not in msgspec.json.encode(result).decode()


def test_it_is_told_when_asked_for() -> None:
    result = result_of(log(), show_text=True)
    assert any(SECRET in one.example.before + one.example.after for one in result.findings)


@pytest.mark.parametrize("row", [f'{{"prompt": "{SECRET}', f'["{SECRET}"]', f'{{"{SECRET}": 1}}'])
def test_a_bad_row_tells_nothing_either(row: str) -> None:
    assert SECRET not in " ".join(result_of([row]).problems)
