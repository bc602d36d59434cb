"""Quantiles of the ratio of actual to predicted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.cost.spread import Spread

RATIOS = st.lists(st.floats(0.1, 10.0), max_size=12)


def of(ratios: list[float], fade: float = 0.9) -> Spread:
    spread = Spread(assumed=1.5, fade=fade)
    for ratio in ratios:
        spread.observe(ratio)
    return spread


def test_before_anything_was_seen_the_assumption_stands() -> None:
    assert of([]).quantile(0.5) == pytest.approx(1.0, abs=0.02)
    assert of([]).quantile(0.95) == pytest.approx(1.5, abs=0.02)


def test_the_assumption_fades_as_observations_come_in() -> None:
    highs = [of([1.0] * n).quantile(0.95) for n in (0, 1, 3, 10, 30)]
    assert highs == sorted(highs, reverse=True)
    assert highs[-1] == pytest.approx(1.0, abs=0.02)


def test_fading_the_past_does_not_bring_the_assumption_back() -> None:
    assert of([1.0] * 1000, fade=0.5).quantile(0.95) == pytest.approx(1.0, abs=0.02)


def test_it_follows_the_recent_past() -> None:
    assert of([1.0] * 100 + [2.0] * 30).quantile(0.5) == pytest.approx(2.0, rel=0.02)


@given(RATIOS, RATIOS, RATIOS)
def test_merging_is_associative(a: list[float], b: list[float], c: list[float]) -> None:
    x, y, z = of(a), of(b), of(c)
    left, right = x.merged(y).merged(z), x.merged(y.merged(z))
    assert left.n == right.n
    assert left.histogram.counts() == pytest.approx(right.histogram.counts())


@given(RATIOS)
def test_asking_twice_gives_the_same(ratios: list[float]) -> None:
    spread = of(ratios)
    assert spread.quantile(0.9) == spread.quantile(0.9)
