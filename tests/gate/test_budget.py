"""The cap on loads that a replica has to earn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.gate.budget import LoadBudget


def test_a_new_replica_starts_small_and_grows_with_every_load_in_time() -> None:
    budget = LoadBudget(start=1, most=3, growth=0.5)
    caps = []
    for _ in range(8):
        caps.append(budget.cap)
        budget.take()
        budget.give_back(success=True)
    assert caps == [1, 1, 2, 2, 3, 3, 3, 3]


def test_a_load_that_went_wrong_halves_it_but_never_below_the_start() -> None:
    budget = LoadBudget(start=1, most=8, growth=7.0)
    budget.take()
    budget.give_back(success=True)
    caps = []
    for _ in range(5):
        caps.append(budget.cap)
        budget.take()
        budget.give_back(success=False)
    assert caps == [8, 4, 2, 1, 1]


def test_a_load_that_never_began_changes_nothing() -> None:
    budget = LoadBudget(start=2, most=8, growth=1.0)
    budget.take()
    budget.give_back(success=None)
    assert (budget.cap, budget.in_flight) == (2, 0)


@pytest.mark.parametrize(("start", "most"), [(0, 4), (5, 4), (-1, 1)])
def test_a_cap_that_makes_no_sense_is_refused(start: int, most: int) -> None:
    with pytest.raises(ValueError, match="1 <= start <= most"):
        LoadBudget(start=start, most=most, growth=0.5)


@given(st.lists(st.sampled_from([True, False, None])), st.floats(0.0, 10.0))
def test_the_cap_stays_between_start_and_most(outcomes: list[bool | None], growth: float) -> None:
    budget = LoadBudget(start=2, most=5, growth=growth)
    for outcome in outcomes:
        assert budget.free
        budget.take()
        budget.give_back(success=outcome)
        assert 2 <= budget.cap <= 5
        assert budget.in_flight == 0


def test_full_is_full() -> None:
    budget = LoadBudget(start=2, most=2, growth=0.0)
    budget.take()
    assert budget.free
    budget.take()
    assert not budget.free
