from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.engines.transformers.text import Writer


def by_bytes(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def write(text: str | bytes, stops: Sequence[str] = ()) -> tuple[list[str], Writer]:
    writer = Writer(by_bytes, stops)
    data = text if isinstance(text, bytes) else text.encode()
    return [*(writer.add(byte) for byte in data), writer.flush()], writer


@given(st.text(max_size=30))
def test_the_pieces_make_the_text(text: str) -> None:
    assert "".join(write(text)[0]) == text


@given(st.text(max_size=30))
def test_no_piece_holds_half_a_character(text: str) -> None:
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(write(text.replace("\N{REPLACEMENT CHARACTER}", ""))[0])


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=4))
def test_nothing_behind_a_stop_string_is_written(text: str, stop: str) -> None:
    assert "".join(write(text, [stop])[0]) == text.split(stop)[0]


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=4))
def test_stopped_says_whether_the_stop_string_came(text: str, stop: str) -> None:
    assert write(text, [stop])[1].stopped == (stop in text)


def test_the_first_of_several_stop_strings_counts() -> None:
    assert "".join(write("one two three", ["three", "two"])[0]) == "one "


def test_text_is_not_held_back_without_need() -> None:
    writer = Writer(by_bytes, ["xyz"])
    assert writer.add(ord("a")) == "a"


@pytest.mark.parametrize("junk", [b"\xe3\x81", b"\xff" * 12])
def test_bytes_that_are_no_text_are_not_held_for_ever(junk: bytes) -> None:
    assert "".join(write(junk)[0]) == by_bytes(junk)
