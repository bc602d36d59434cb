"""The conversions against the definitions of the formats, number by number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from kvferry.store.codec.floats import E4M3_MOST, e4m3_numbers, from_e4m3, narrow, to_e4m3, widen

Wide = NDArray[np.float32]
WIDE = arrays(np.float32, st.integers(1, 64), elements=st.floats(-448, 448, width=32))


def nearest_e4m3(number: np.float32) -> int:
    """By the definition: the nearest of the finite codes, the even one on a tie."""
    size = e4m3_numbers()[:127].astype(np.float64)
    distance = np.abs(size - abs(float(number)))
    nearest = np.flatnonzero(distance == distance.min())
    code = int(nearest[0] if len(nearest) == 1 else nearest[nearest % 2 == 0][0])
    return code | (0x80 if np.signbit(number) else 0)


def test_the_largest_e4m3_number() -> None:
    assert e4m3_numbers()[0x7E] == E4M3_MOST


@pytest.mark.parametrize(("code", "number"), [(0x01, 2**-9), (0x08, 2**-6), (0x38, 1.0), (0xBC, -1.5)])
def test_e4m3_numbers_of_the_specification(code: int, number: float) -> None:
    assert e4m3_numbers()[code] == number


def test_every_finite_e4m3_number_keeps_its_code() -> None:
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    out = np.empty_like(codes)
    to_e4m3(e4m3_numbers()[codes], out)
    assert (out == codes).all()


def test_ties_between_e4m3_numbers_go_to_even() -> None:
    numbers = e4m3_numbers()[:127]
    halfway = (numbers[:-1] + numbers[1:]) / 2
    out = np.empty(len(halfway), np.uint8)
    to_e4m3(halfway.copy(), out)
    assert (out % 2 == 0).all()


@given(WIDE)
def test_numbers_become_the_nearest_e4m3(wide: Wide) -> None:
    out = np.empty(wide.shape, np.uint8)
    to_e4m3(wide.copy(), out)
    assert out.tolist() == [nearest_e4m3(number) for number in wide]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_finite_16_bit_number_comes_back(dtype: str) -> None:
    exponent = 0x7C00 if dtype == "float16" else 0x7F80
    stored = np.array([bits for bits in range(1 << 16) if bits & exponent != exponent], np.uint16)
    out = np.empty_like(stored)
    narrow(widen(stored, dtype), out, dtype)
    assert (out == stored).all()


@given(arrays(np.float32, st.integers(1, 64), elements=st.floats(-65504, 65504, width=32)))
def test_numbers_become_the_nearest_float16(wide: Wide) -> None:
    out = np.empty(wide.shape, np.uint16)
    narrow(wide.copy(), out, "float16")
    ours = out.view(np.float16).astype(np.float64)
    # numpy rounds ties to even, so only the distance must be the same.
    assert (np.abs(ours - wide) == np.abs(wide.astype(np.float16).astype(np.float64) - wide)).all()


@pytest.mark.parametrize(
    ("number", "bits"),
    [
        (1.0, 0x3F80),
        (1.00390625, 0x3F81),
        (-1.00390625, 0xBF81),
        (1.0039, 0x3F80),
        (1e-40, 0x0001),
        (3.3895314e38, 0x7F7F),
    ],
)
def test_numbers_become_the_nearest_bfloat16_away_from_zero_on_a_tie(number: float, bits: int) -> None:
    out = np.empty(1, np.uint16)
    narrow(np.array([number], np.float32), out, "bfloat16")
    assert out[0] == bits


@pytest.mark.parametrize(
    ("number", "bits"), [(1.00048828125, 0x3C01), (-(2.0**-25), 0x8001), (2.0**-26, 0x0000), (65504, 0x7BFF)]
)
def test_ties_between_float16_numbers_go_away_from_zero(number: float, bits: int) -> None:
    out = np.empty(1, np.uint16)
    narrow(np.array([number], np.float32), out, "float16")
    assert out[0] == bits


def test_codes_are_read_two_at_a_time_in_their_order() -> None:
    codes = np.arange(8, dtype=np.uint8).reshape(2, 4)
    wide = np.empty(codes.shape, np.float32)
    from_e4m3(codes, wide)
    assert (wide == e4m3_numbers()[codes]).all()


def test_what_is_beyond_float16_becomes_its_largest_number() -> None:
    out = np.empty(2, np.uint16)
    narrow(np.array([70000, -70000], np.float32), out, "float16")
    assert out.view(np.float16).tolist() == [65504, -65504]
