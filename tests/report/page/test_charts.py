from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.report.page.charts import (
    bytes_axis,
    label,
    mark,
    percent_axis,
    seconds_axis,
    stacked_bar,
    tokens_axis,
)

GIB = 2**30


def test_a_label_is_no_markup() -> None:
    assert label("<b>x</b> & y") == "&lt;b&gt;x&lt;/b&gt; &amp; y"


def test_a_long_label_is_cut() -> None:
    assert label("x" * 100, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (4 * GIB, 64 * GIB, ["4 GiB", "8 GiB", "16 GiB", "32 GiB", "64 GiB"]),
        (GIB // 1024, 32 * 1024 * GIB, ["1 MiB", "8 MiB", "1 GiB", "64 GiB", "1 TiB"]),
        (GIB // 4, 32 * 1024 * GIB, ["256 MiB", "1 GiB", "4 GiB", "1 TiB", "16 TiB"]),
    ],
)
def test_bytes_have_ticks_of_whole_units(low: float, high: float, ticks: list[str]) -> None:
    assert [tick for tick in ticks if tick not in bytes_axis(low, high)["ticktext"]] == []


@pytest.mark.parametrize("axis", [bytes_axis, tokens_axis, seconds_axis])
@given(low=st.floats(1e-3, 1e12), factor=st.floats(1.0, 1e8))
def test_a_logarithmic_axis_holds_its_values(axis: object, low: float, factor: float) -> None:
    made = axis(low, low * factor)  # type: ignore[operator]
    assert made["range"][0] < math.log10(low)
    assert made["range"][1] > math.log10(low * factor)
    assert len(made["tickvals"]) == len(made["ticktext"]) <= 22


def test_a_percent_axis_ends_at_all() -> None:
    assert percent_axis(1.0)["range"] == [0, 102.0]


def test_a_mark_is_a_line_and_words() -> None:
    shape, note = mark(5.0, "the pool · 5", "the pool", row=2)
    assert (shape["x0"], shape["x1"], note["x"]) == (5.0, 5.0, 5.0)
    assert (note["text"], note["name"], note["yshift"]) == ("the pool · 5", "the pool", -32)


def test_the_parts_of_a_bar_are_shares() -> None:
    bar = stacked_bar([("a", 30, "red"), ("b", 70, "blue")], 100, "tokens")
    assert [trace["x"] for trace in bar["data"]] == [[30.0], [70.0]]


def test_a_bar_of_nothing_is_empty() -> None:
    assert [trace["x"] for trace in stacked_bar([("a", 0, "red")], 0, "tokens")["data"]] == [[0.0]]


def test_a_bar_of_all_has_a_tick_at_all() -> None:
    axis = stacked_bar([("a", 30, "red")], 30, "tokens")["layout"]["xaxis"]
    assert axis["range"][1] == 100
    assert (axis["tick0"], 100 % axis["dtick"], axis["ticklabeloverflow"]) == (0, 0, "allow")
