"""The rule by which a tier makes room for others, on exact figures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvferry.store.memory.pressure import GROW_SECONDS, Pressure
from kvferry.store.memory.room import Room

MIB = 1 << 20
LIMIT = 1000 * MIB
NEAR = 100 * MIB
"""A tenth of the limit."""
CAPACITY = 320 * MIB
STEP = 20 * MIB


def room(free_bytes: int) -> Room:
    return Room(LIMIT, LIMIT - free_bytes, "test")


def test_far_from_the_limit_nothing_changes() -> None:
    assert Pressure(CAPACITY).allowance(0.0, room(NEAR), CAPACITY, CAPACITY) == CAPACITY


def test_near_the_limit_it_gives_up_what_makes_twice_near_free() -> None:
    free = NEAR - MIB
    allowed = Pressure(CAPACITY).allowance(0.0, room(free), CAPACITY, CAPACITY)
    assert CAPACITY - allowed == 2 * NEAR - free


def test_memory_that_was_never_written_is_given_up_on_top() -> None:
    committed = 200 * MIB
    assert Pressure(CAPACITY).allowance(0.0, room(0), CAPACITY, committed) == committed - 2 * NEAR


def test_it_never_gives_more_than_it_has() -> None:
    assert Pressure(CAPACITY).allowance(0.0, room(0), CAPACITY, MIB) == 0


def test_it_grows_back_by_a_sixteenth_every_ten_seconds() -> None:
    pressure = Pressure(CAPACITY)
    allowed = pressure.allowance(0.0, room(0), CAPACITY, CAPACITY)
    assert pressure.allowance(GROW_SECONDS - 0.1, room(LIMIT), allowed, 0) == allowed
    assert pressure.allowance(GROW_SECONDS, room(LIMIT), allowed, 0) == allowed + STEP
    assert pressure.allowance(GROW_SECONDS + 1, room(LIMIT), allowed + STEP, 0) == allowed + STEP
    assert pressure.allowance(2 * GROW_SECONDS, room(LIMIT), allowed + STEP, 0) == allowed + 2 * STEP


def test_it_grows_only_into_memory_that_stays_free_once_it_is_written() -> None:
    allowed, committed = 100 * MIB, 60 * MIB
    spare = 5 * MIB
    free = 2 * NEAR + (allowed - committed) + spare
    assert Pressure(CAPACITY).allowance(0.0, room(free), allowed, committed) == allowed + spare
    assert Pressure(CAPACITY).allowance(0.0, room(free - spare), allowed, committed) == allowed


def test_without_a_known_limit_it_grows_back() -> None:
    assert Pressure(CAPACITY).allowance(0.0, None, 0, 0) == STEP


def test_a_large_machine_keeps_no_more_than_a_gibibyte_clear() -> None:
    huge = Room(1 << 40, (1 << 40) - (1 << 30), "test")
    assert Pressure(CAPACITY).allowance(0.0, huge, CAPACITY, CAPACITY) == CAPACITY


@given(
    free=st.integers(0, LIMIT),
    allowed=st.integers(0, CAPACITY),
    share=st.floats(0, 1),
    waited=st.floats(0, 100),
)
def test_any_figures_give_an_allowance_within_the_capacity(
    free: int, allowed: int, share: float, waited: float
) -> None:
    new = Pressure(CAPACITY).allowance(waited, room(free), allowed, int(allowed * share))
    assert 0 <= new <= CAPACITY
    assert new - allowed <= STEP
    assert new <= allowed or free > 2 * NEAR
