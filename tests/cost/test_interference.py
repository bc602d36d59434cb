"""What loads take from others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.cost.interference import InterferenceModel

STEPS = st.lists(st.tuples(st.floats(0.001, 1.0), st.integers(0, 3)), max_size=8)


def learned(steps: list[tuple[float, int]], held: float = 0.0) -> InterferenceModel:
    model = InterferenceModel()
    for seconds, transfers in steps:
        model.observe_decode(seconds, transfers)
    model.observe_load(held)
    return model


def test_the_growth_of_a_decode_step_beside_a_transfer() -> None:
    assert learned([(0.020, 0), (0.025, 1)] * 20).growth == pytest.approx(0.25)


def test_a_step_that_shrinks_is_no_gift() -> None:
    assert learned([(0.020, 0), (0.015, 1)] * 20).growth == 0.0


@pytest.mark.parametrize("steps", [[], [(0.02, 0)] * 50, [(0.02, 1)] * 50, [(0.02, 0), (0.04, 1)] * 4])
def test_nothing_is_said_before_both_were_seen_often_enough(steps: list[tuple[float, int]]) -> None:
    assert learned(steps).growth == 0.0


def test_waits_for_held_memory_are_charged_per_load() -> None:
    model = InterferenceModel()
    assert model.held_seconds_per_load == 0.0
    model.observe_load(0.3)
    model.observe_load(0.1)
    assert model.held_seconds_per_load == pytest.approx(0.2, rel=0.01)


@given(STEPS, STEPS, STEPS)
def test_merging_is_associative(
    a: list[tuple[float, int]], b: list[tuple[float, int]], c: list[tuple[float, int]]
) -> None:
    x, y, z = learned(a, 0.1), learned(b, 0.2), learned(c, 0.3)
    left, right = x.merged(y).merged(z), x.merged(y.merged(z))
    for name in InterferenceModel.__slots__:
        assert getattr(left, name) == pytest.approx(getattr(right, name))
