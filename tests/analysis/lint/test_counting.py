"""Exact counts with a tokenizer whose tokens are known."""

from __future__ import annotations

import re

import pytest
from planting import clean, result_of

from kvferry.analysis.lint import by_bytes, by_tokenizer
from kvferry.analysis.lint.prompt import Piece, Prompt


def words(text: str, chat: bool) -> list[int]:
    """A token for every run of letters and for every other character."""
    del chat
    return [hash(one) & 0xFFFF for one in re.findall(r"\w+|\W", text)]


def prompt(text: str) -> Prompt:
    return Prompt(1, text, [Piece(0, len(text), "prompt")])


@pytest.mark.parametrize(("offset", "tokens"), [(0, 0), (3, 1), (4, 2), (6, 2), (9, 3), (10, 4), (14, 5)])
def test_a_token_counts_where_it_ends(offset: int, tokens: int) -> None:
    assert by_tokenizer(words, "words").before(prompt("one three five"), offset) == tokens


def test_the_estimate_is_bytes_by_four() -> None:
    assert by_bytes().before(prompt("éééé----"), 4) == 2


def test_the_estimate_says_so() -> None:
    assert "estimated" in result_of(clean(1, 1)).counting


def test_exact_losses_are_those_that_come_back() -> None:
    def log(dates: bool) -> tuple[int, int]:
        rows = clean(1)
        for number, row in enumerate(rows):
            day = number % 28 + 1 if dates else 1
            row["messages"][0]["content"] = f"Today is 2026-11-{day:02d}.\n" + row["messages"][0]["content"]
        result = result_of(rows, counting=by_tokenizer(words, "words"))
        return result.cached_tokens, result.lost_tokens

    planted, mended = log(True), log(False)
    assert mended[0] - planted[0] == planted[1]
