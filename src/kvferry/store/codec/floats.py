"""Between the number formats of blocks and float32, and from float32 to narrow floats, in whole arrays.

numpy has no bfloat16 and converts float16 one number at a time, so both are done on the bits here: 16-bit
floats are widened by a shift or a table, and narrowed by one addition that makes the processor round at the
right place. Rounds to nearest, ties to even, subnormal numbers included.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .scratch import scratch

__all__ = ["E4M3_MOST", "e4m3_numbers", "narrow", "to_e4m3", "widen"]

E4M3_MOST = 448.0
"""The largest number of FP8 E4M3 (OCP 8-bit floating point: no infinities, one NaN a sign)."""

_HALF_MOST = 65504.0
_EXPONENT = np.uint32(0x7F800000)
_SIGN = np.uint32(0x80000000)

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

    What is beyond float16 becomes its largest number: decoding must not turn a large number into infinity.
    """
    if dtype == "float16":
        np.clip(wide, -_HALF_MOST, _HALF_MOST, out=wide)
        _round(wide, stored, mantissa_bits=10, bias=15)
        return
    words = wide.view(np.uint32)
    odd = scratch("words", wide.shape, np.uint32)
    np.right_shift(words, np.uint32(16), out=odd)
    np.bitwise_and(odd, np.uint32(1), out=odd)
    np.add(odd, np.uint32(0x7FFF), out=odd)
    np.add(words, odd, out=words)
    np.right_shift(words, np.uint32(16), out=words)
    np.copyto(stored, words, casting="unsafe")


def to_e4m3(wide: Floats, codes: NDArray[np.uint8]) -> None:
    """Write float32 numbers within ±448 as FP8 E4M3; `wide` is used up."""
    _round(wide, codes, mantissa_bits=3, bias=7)


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
def _halves() -> Floats:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _round(wide: Floats, codes: NDArray[Any], *, mantissa_bits: int, bias: int) -> None:
    """Sign, exponent and mantissa of a narrower float for each number.

    Adding 2^(e + 23 - mantissa_bits) to a number of exponent e leaves the number, rounded, in the lowest
    bits of the sum, in units of its last place; below the least exponent of the narrow type the unit stays
    the same, which gives its subnormal numbers. So the code is those bits plus the exponent's share, counted
    from the least exponent. A carry into the next exponent comes out right by itself.
    """
    dropped = 23 - mantissa_bits
    least = 128 - bias
    width = codes.dtype.itemsize * 8
    magnitude = (1 << (width - 1)) - 1
    # What counts the exponent from the least one: even, so that ties still go to even.
    offset = -(least << mantissa_bits) & magnitude
    bits = wide.view(np.uint32)
    sign = scratch("sign", wide.shape, np.uint32)
    power = scratch("words", wide.shape, np.uint32)
    shift = scratch("shift", wide.shape, np.uint32)
    np.bitwise_and(bits, _SIGN, out=sign)
    np.bitwise_and(bits, _EXPONENT, out=power)
    # As floats these are powers of two, and numpy clips floats at full speed.
    powers = power.view(np.float32)
    np.clip(powers, np.float32(2.0) ** (1 - bias), np.finfo(np.float32).max, out=powers)
    np.add(power, np.uint32((dropped << 23) + offset), out=shift)
    np.bitwise_or(shift, sign, out=shift)
    np.add(wide, shift.view(np.float32), out=wide)
    np.right_shift(power, np.uint32(dropped), out=power)
    np.add(bits, power, out=bits)
    np.bitwise_and(bits, np.uint32(magnitude), out=bits)
    np.right_shift(sign, np.uint32(32 - width), out=sign)
    np.bitwise_or(bits, sign, out=bits)
    np.copyto(codes, bits, casting="unsafe")
