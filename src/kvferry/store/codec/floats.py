"""Between the number formats of blocks and float32, and from float32 to narrow floats, in whole arrays.

numpy has no bfloat16 and converts float16 one number at a time, so both are done on the bits here, subnormal
numbers included (unless the thread was told to flush them to zero).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .scratch import scratch

__all__ = ["E4M3_MOST", "Floats", "e4m3_numbers", "from_e4m3", "narrow", "to_e4m3", "widen"]

E4M3_MOST = 448.0
"""The largest number of FP8 E4M3 (OCP 8-bit floating point: no infinities, one NaN a sign)."""

_HALF_MOST = np.float32(65504)
_HALF_TO_SINGLE = np.float32(2.0**-112)
_E4M3_LEAST = np.float32(2.0**-6)
_E4M3_OFFSET = -(121 << 3) & 0x7F
# Counts the exponent from the least one, 121 as float32 stores it; even, so that ties still go to even.

Floats = NDArray[np.float32]


def widen(stored: NDArray[Any], dtype: str) -> Floats:
    """The numbers of a block's array as float32: the array itself, or this thread's scratch."""
    if dtype == "float32":
        return stored
    wide: Floats = scratch("wide", stored.shape)
    if dtype == "float16":
        np.take(_halves(), stored, out=wide, mode="clip")
    else:
        words = wide.view(np.uint32)
        np.copyto(words, stored)
        np.left_shift(words, np.uint32(16), out=words)
    return wide


def narrow(wide: Floats, stored: NDArray[Any], dtype: str) -> None:
    """Write float32 numbers into a block's array of a 16-bit type; `wide` is used up.

    Rounds to nearest, ties away from zero: to even would take as many steps again, and a decoded number is
    half a step of its codec off as it is. What is beyond float16 becomes its largest number: decoding must
    not turn a large number into infinity.
    """
    bits = wide.view(np.uint32)
    if dtype == "bfloat16":
        np.add(bits, np.uint32(0x8000), out=bits)
        np.right_shift(bits, np.uint32(16), out=bits)
        np.copyto(stored, bits, casting="unsafe")
        return
    np.clip(wide, -_HALF_MOST, _HALF_MOST, out=wide)
    # With the least exponent of float16 moved onto that of float32, mantissas and subnormal numbers line up.
    np.multiply(wide, _HALF_TO_SINGLE, out=wide)
    np.add(bits, np.uint32(0x1000), out=bits)
    np.right_shift(bits, np.uint32(13), out=bits)
    np.copyto(stored, bits, casting="unsafe")
    np.right_shift(bits, np.uint32(3), out=bits)
    sign = scratch("halves", wide.shape, np.uint16)
    np.copyto(sign, bits, casting="unsafe")
    np.bitwise_and(sign, np.uint16(0x8000), out=sign)
    np.bitwise_or(stored, sign, out=stored)


def to_e4m3(wide: Floats, codes: NDArray[np.uint8]) -> None:
    """Write float32 numbers within ±448 as FP8 E4M3, to nearest, ties to even; `wide` is used up.

    Adding 2^(e + 20) to a number of exponent e leaves the number, rounded to four bits, in the lowest bits of
    the sum, in units of its last place; below the least exponent of E4M3 the unit stays the same, which gives
    its subnormal numbers. So the code is those bits plus the exponent's share, counted from the least
    exponent. A carry into the next exponent comes out right by itself.
    """
    bits = wide.view(np.uint32)
    sign = scratch("sign", wide.shape, np.uint32)
    power = scratch("power", wide.shape, np.uint32)
    shift = scratch("shift", wide.shape, np.uint32)
    np.bitwise_and(bits, np.uint32(0x80000000), out=sign)
    np.bitwise_and(bits, np.uint32(0x7F800000), out=power)
    # As floats these are powers of two, and numpy clips floats at full speed.
    powers = power.view(np.float32)
    np.clip(powers, _E4M3_LEAST, np.float32(512), out=powers)
    np.add(power, np.uint32((20 << 23) + _E4M3_OFFSET), out=shift)
    np.bitwise_or(shift, sign, out=shift)
    np.add(wide, shift.view(np.float32), out=wide)
    np.right_shift(power, np.uint32(20), out=power)
    np.add(bits, power, out=bits)
    np.bitwise_and(bits, np.uint32(0x7F), out=bits)
    np.right_shift(sign, np.uint32(24), out=sign)
    np.bitwise_or(bits, sign, out=bits)
    np.copyto(codes, bits, casting="unsafe")


def from_e4m3(codes: NDArray[np.uint8], wide: Floats) -> None:
    """The numbers of codes, whose innermost axes are contiguous and even together; two at a time."""
    pairs = np.ascontiguousarray(codes).reshape(-1).view(np.uint16)
    np.take(_e4m3_pairs(), pairs, out=wide.reshape(-1).view(np.uint64), mode="clip")


@cache
def e4m3_numbers() -> Floats:
    """The number of each E4M3 code, float32 [256]."""
    codes = np.arange(256, dtype=np.uint32)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    steps = np.where(exponent == 0, mantissa, mantissa + 8).astype(np.float32)
    numbers: Floats = np.ldexp(steps, np.maximum(exponent, 1).astype(np.int32) - 10)
    numbers[(codes & 0x7F) == 0x7F] = np.nan
    numbers[128:] *= -1
    return numbers


@cache
def _e4m3_pairs() -> NDArray[np.uint64]:
    """Two numbers side by side for each pair of codes: half as many look-ups."""
    codes = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    return e4m3_numbers()[codes].view(np.uint64)


@cache
def _halves() -> Floats:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
