"""Places in a prompt, and how far two texts agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.analysis.lint.prompt import Piece, Prompt, common_length


@given(st.text("ab", max_size=400), st.text("ab", max_size=400), st.integers(0, 400), st.booleans())
def test_common_length_is_that_of_a_loop(left: str, right: str, cut: int, alike: bool) -> None:
    if alike:
        right = left[:cut] + right
    slow = 0
    while slow < min(len(left), len(right)) and left[slow] == right[slow]:
        slow += 1
    assert common_length(left, 0, right, 0) == slow


PROMPT = Prompt(
    1,
    "[system]\none\ntwo\n[tools]\n{}\n[user]\n<image>then\n",
    [
        Piece(9, 16, "message", "system", 0),
        Piece(25, 27, "tool", index=0, name="search"),
        Piece(35, 42, "image", "user", 1),
        Piece(42, 46, "message", "user", 1),
    ],
)


@pytest.mark.parametrize(
    ("offset", "place", "line"),
    [
        (9, "messages[0] (system)", 1),
        (14, "messages[0] (system)", 2),
        (16, "messages[0] (system)", 2),
        (25, 'tools[0] "search"', 0),
        (36, "messages[1] (user), image", 0),
        (43, "messages[1] (user)", 1),
        (0, "the chat template's own text", 0),
    ],
)
def test_a_place_has_a_name(offset: int, place: str, line: int) -> None:
    assert (PROMPT.place_at(offset), PROMPT.line_at(offset)) == (place, line)
