"""Dates, identifiers and counters where two texts part; shapes that say nothing."""

from __future__ import annotations

import pytest

from kvferry.analysis.lint.prompt import common_length
from kvferry.analysis.lint.volatile import meet_volatile, shape, without_volatile

PAIRS = [
    ("date", "2026-11-29", "2026-11-30"),
    ("date", "2026-11-29T10:00:00Z", "2026-11-29T10:00:01Z"),
    ("date", "29.11.2026", "30.11.2026"),
    ("date", "11/29/2026", "12/01/2026"),
    ("date", "November 29, 2026", "December 1, 2026"),
    ("date", "29 November 2026", "1 December 2026"),
    ("date", "Sunday, 29 November 2026, 14:05 UTC", "Monday, 30 November 2026, 09:55 UTC"),
    ("date", "Monday", "Sunday"),
    ("date", "29 ноября 2026", "30 ноября 2026"),
    ("date", "2026年11月29日", "2026年11月30日"),
    ("date", "9:59", "10:00"),
    ("date", "1764400000", "1764400061"),
    ("date", "1764400000123", "1764400061456"),
    ("id", "0b7c1c3e-8f0e-4f6a-9d3b-1f2e3d4c5b6a", "1b7c1c3e-8f0e-4f6a-9d3b-1f2e3d4c5b6a"),
    ("id", "req_8f3a2b1c", "req_1c2d3e4f"),
    ("id", "8f3a2b1c9d", "7a6b5c4d3e"),
    ("id", "01HF7YAT31JZHXD6F9QZKX4R9S", "01HF7YAT32JZHXD6F9QZKX4R9T"),
    ("counter", "9", "10"),
    ("counter", "order-1042", "order-1043"),
    ("counter", "12.50", "13.75"),
]


@pytest.mark.parametrize(("kind", "left", "right"), PAIRS)
def test_the_kind_is_told_and_the_piece_is_passed(kind: str, left: str, right: str) -> None:
    texts = f"Note: {left} and so on", f"Note: {right} and so on"
    at = common_length(texts[0], 0, texts[1], 0)
    found = meet_volatile(texts[0], at, texts[1], at)
    assert found is not None
    assert (found.kind, texts[0][found.left_end :], texts[1][found.right_end :]) == (
        kind,
        " and so on",
        " and so on",
    )


@pytest.mark.parametrize(
    ("left", "right"), [("alice", "robert"), ("k1", "k2x"), ("state-of-art", "state-of-war")]
)
def test_words_are_not_volatile(left: str, right: str) -> None:
    at = common_length(left, 0, right, 0)
    assert meet_volatile(left, at, right, at) is None


def test_texts_that_differ_in_dates_and_ids_only_are_equal_without() -> None:
    one = without_volatile("From 2026-11-29 10:00, id 8f3a2b1c9d")
    assert one == without_volatile("From 2025-01-02 23:59, id 7a6b5c4d3e")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2026-11-29T10:00:00Z", "<date>"),
        ("0b7c1c3e-8f0e-4f6a-9d3b-1f2e3d4c5b6a", "<uuid>"),
        ("42", "<number>"),
        ("Alice Novak", "<text, 11 characters>"),
        ("", "<nothing>"),
        ("\r\n", "<whitespace \\r\\n>"),
    ],
)
def test_shapes(text: str, said: str) -> None:
    assert shape(text) == said
