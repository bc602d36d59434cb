from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvferry.analysis.intervals import STEPS, Intervals, edge, step_of


@given(seconds=st.floats(0.0, 1e6))
def test_an_interval_is_within_its_step(seconds: float) -> None:
    step = int(step_of(np.array([seconds]))[0])
    assert 0 <= step < STEPS
    assert seconds <= edge(step) * (1 + 1e-9)
    assert step == 0 or seconds > edge(step - 1) * (1 - 1e-9)


def test_bins_hold_every_token_and_no_empty_end() -> None:
    count = Intervals()
    count.add(np.array([0, 2, 2]), np.array([0.0, 3.0, 100.0]), np.array([5, 7, 11]))
    bins = count.bins()
    assert sum(one.tokens for one in bins) == 23
    assert bins[0].from_seconds == 0.0
    assert bins[-1].from_seconds < 100.0 <= bins[-1].to_seconds
    assert [one.to_seconds for one in bins[:-1]] == [one.from_seconds for one in bins[1:]]


def test_quantiles_weigh_tokens_and_join_classes() -> None:
    count = Intervals()
    count.add(np.array([0, 1]), np.array([1.0, 64.0]), np.array([1, 99]))
    assert count.quantile_of([0], 0.99) == 1.0
    assert count.quantile_of([0, 1], 0.5) == 64.0
    assert count.quantile_of([7], 0.5) is None


def test_a_life_is_not_longer_than_the_longest_interval() -> None:
    count = Intervals()
    count.add(np.array([0, 0, 1]), np.array([3.0, 17_845.0, 50.0]), np.array([1, 99, 1]))
    assert count.quantile_of([0], 0.99) == 17_845.0
    assert count.quantile_of([1], 0.99) == 50.0
    assert count.bins()[-1].to_seconds == 17_845.0
