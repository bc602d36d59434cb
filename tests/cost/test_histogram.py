"""Quantiles with a fixed relative error, and merging."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.cost.histogram import Histogram

VALUES = st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=40)
WHOLE = st.lists(st.floats(1e-3, 1e3), max_size=10)


def of(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(VALUES, st.floats(0.0, 1.0))
def test_a_quantile_lies_within_its_bound_of_an_observed_value(values: list[float], q: float) -> None:
    found = of(values).quantile(q)
    rank = max(0, -(-q * len(values) // 1) - 1)
    near = sorted(values)[max(0, int(rank) - 1) : int(rank) + 2]
    assert any(abs(found / value - 1.0) < 0.011 for value in near)


@given(VALUES, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_quantiles_rise(values: list[float], a: float, b: float) -> None:
    low, high = sorted((a, b))
    histogram = of(values)
    assert histogram.quantile(low) <= histogram.quantile(high)


@given(WHOLE, WHOLE, WHOLE)
def test_merging_is_associative_and_commutative(a: list[float], b: list[float], c: list[float]) -> None:
    x, y, z = of(a), of(b), of(c)
    assert x.merged(y).merged(z) == x.merged(y.merged(z)) == of(a + b + c)
    assert x.merged(y) == y.merged(x)


@given(VALUES)
def test_counts_restore_it(values: list[float]) -> None:
    histogram = of(values)
    assert Histogram(histogram.counts()) == histogram


def test_fading_forgets_the_past() -> None:
    histogram = of([1.0] * 100)
    histogram.fade(1e-3)
    histogram.add(8.0)
    assert histogram.quantile(0.5) == pytest.approx(8.0, rel=0.011)
    histogram.fade(1e-9)
    assert histogram.counts() == {}


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-300, 1e300])
def test_values_out_of_range_land_at_the_ends(value: float) -> None:
    assert 2.0**-41 < of([value]).quantile(0.5) < 2.0**41


def test_an_empty_histogram_has_no_quantiles() -> None:
    with pytest.raises(ValueError, match="no quantiles"):
        Histogram().quantile(0.5)
