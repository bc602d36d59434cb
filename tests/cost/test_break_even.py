from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.cost.break_even import break_even
from kvferry.errors import UsageError
from kvferry.units import GIB, MIB


def test_the_worked_example_carries_at_8_gib_per_second() -> None:
    result = break_even(256 * MIB, 0.004, 0.060, 8 * GIB)
    assert (result.load_seconds, result.carry) == (0.03525, True)


def test_the_worked_example_recomputes_at_2_gib_per_second() -> None:
    result = break_even(256 * MIB, 0.004, 0.060, 2 * GIB)
    assert (result.load_seconds, result.carry) == (0.129, False)


def test_the_worked_example_breaks_even_at_4_46_gib_per_second() -> None:
    assert round(break_even(256 * MIB, 0.004, 0.060).break_even_bytes_per_second / GIB, 2) == 4.46


@pytest.mark.parametrize("recompute", [0.003, 0.004])
def test_no_link_pays_when_the_overhead_takes_as_long(recompute: float) -> None:
    result = break_even(256 * MIB, 0.004, recompute, 1e15)
    assert (result.break_even_bytes_per_second, result.carry) == (math.inf, False)


@pytest.mark.parametrize(
    ("amounts", "name"),
    [
        ((-1, 0.0, 1.0, None), "bytes"),
        ((1, -0.1, 1.0, None), "overhead"),
        ((1, 0.0, math.inf, None), "recompute"),
        ((1, 0.0, 1.0, 0.0), "bandwidth"),
        ((1, 0.0, 1.0, math.nan), "bandwidth"),
    ],
)
def test_an_amount_that_means_nothing_is_refused(
    amounts: tuple[int, float, float, float | None], name: str
) -> None:
    with pytest.raises(UsageError, match=f"^{name}:"):
        break_even(*amounts)


@given(
    st.integers(1, 10**13),
    st.floats(0, 10),
    st.floats(1e-6, 100),
    st.floats(0.01, 100).filter(lambda x: abs(x - 1) > 1e-6),
)
def test_links_above_the_break_even_carry_and_those_below_do_not(
    size: int, overhead: float, spare: float, factor: float
) -> None:
    threshold = break_even(size, overhead, overhead + spare).break_even_bytes_per_second
    assert break_even(size, overhead, overhead + spare, threshold * factor).carry == (factor > 1)
