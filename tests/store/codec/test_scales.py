from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from kvferry.errors import FormatError
from kvferry.store.codec import BlockLayout
from kvferry.store.codec.scales import (
    half_at_least,
    half_at_most,
    inverse,
    key_group,
    require_finite,
    value_group,
)

Wide = NDArray[np.float32]


def numbers(least: float) -> st.SearchStrategy[Wide]:
    return arrays(np.float32, st.integers(1, 32), elements=st.floats(least, 65504, width=32))


def neighbour(halves: NDArray[np.float16], towards: float) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        return np.nextafter(halves, np.float16(towards))


@given(numbers(0.0))
def test_a_scale_is_the_least_that_is_large_enough(wide: Wide) -> None:
    halves = half_at_least(wide)
    assert (halves >= wide).all()
    assert ((neighbour(halves, -np.inf) < wide) | (wide == 0)).all()


@given(numbers(-65504.0))
def test_a_zero_is_the_greatest_that_is_small_enough(wide: Wide) -> None:
    halves = half_at_most(wide)
    assert (halves <= wide).all()
    assert (neighbour(halves, np.inf) > wide).all()


@pytest.mark.parametrize("number", [70000.0, np.inf, np.nan])
def test_what_float16_cannot_hold_is_refused(number: float) -> None:
    with pytest.raises(FormatError, match=r"codec int8.*codec: raw"):
        require_finite(half_at_least(np.array([1.0, number], np.float32)), "int8")


def test_the_inverse_of_no_scale_is_none() -> None:
    assert inverse(np.array([0.0, 4.0], np.float16)).tolist() == [0.0, 0.25]


@pytest.mark.parametrize(("tokens", "group"), [(16, 16), (32, 32), (48, 48), (64, 32)])
def test_keys_share_a_scale_along_tokens(tokens: int, group: int) -> None:
    assert key_group(BlockLayout(1, 1, tokens, 8, "float32")) == group


@pytest.mark.parametrize(("width", "group"), [(80, 80), (64, 32), (128, 32)])
def test_values_share_a_scale_along_channels(width: int, group: int) -> None:
    assert value_group(BlockLayout(1, 1, 8, width, "float32")) == group
