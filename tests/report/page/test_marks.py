from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.report.page.marks import Place, places

WIDTH = 0.35


def crossed(found: list[Place], at: list[float], width: float) -> list[tuple[int, int]]:
    """(words, line) of words that lie across a line."""
    pairs = []
    for number, place in enumerate(found):
        left = at[number] - (width if place.side == "right" else 0.0)
        pairs += [
            (number, other)
            for other, line in enumerate(at)
            if other != number and left < line < left + width and found[other].row <= place.row
        ]
    return pairs


@given(at=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=2, unique=True))
def test_no_words_of_two_lie_across_a_line(at: list[float]) -> None:
    assert crossed(places(sorted(at), [WIDTH] * len(at)), sorted(at), WIDTH) == []


@given(at=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3, unique=True))
def test_of_three_at_most_one_lies_across_a_line(at: list[float]) -> None:
    # A quarter, a half and three quarters leave the words in the middle no free side.
    assert len(crossed(places(sorted(at), [WIDTH] * 3), sorted(at), WIDTH)) <= 1


@given(at=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4, unique=True))
def test_words_stay_inside(at: list[float]) -> None:
    assert [
        (one, place)
        for one, place in zip(at, places(at, [WIDTH] * len(at)), strict=True)
        if (place.side == "left" and one + WIDTH > 1.0) or (place.side == "right" and one < WIDTH)
    ] == []


@given(at=st.lists(st.floats(0.0, 1.0), max_size=8))
def test_each_has_its_row(at: list[float]) -> None:
    assert sorted(place.row for place in places(at, [WIDTH] * len(at))) == list(range(len(at)))


def test_words_at_the_right_leave_the_line_before_them_alone() -> None:
    replica, most = places([0.55, 0.7], [WIDTH, WIDTH])
    assert (most.side, replica.row > most.row) == ("right", True)


@pytest.mark.parametrize("at", [[], [0.2]])
def test_few_marks_are_no_trouble(at: list[float]) -> None:
    assert places(at, [WIDTH] * len(at)) == [Place(0, "left")] * len(at)
