"""Scales of groups of numbers, as float16, rounded so that every number of the group fits.

Owns the rounding and the check that a scale is a number. Refuses to know how the groups are cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatError
from .floats import Floats
from .layout import BlockLayout

__all__ = ["GROUP", "half_at_least", "half_at_most", "inverse", "key_group", "require_finite", "value_group"]

GROUP = 32
"""Numbers that share a scale, where the block's sizes allow."""

Halves = NDArray[np.float16]


def key_group(layout: BlockLayout) -> int:
    """Tokens of one channel that share a scale: 32, or the whole block where 32 does not divide it."""
    return GROUP if layout.block_tokens % GROUP == 0 else layout.block_tokens


def value_group(layout: BlockLayout) -> int:
    """Channels of one token that share a scale: 32, or the whole head where 32 does not divide it."""
    return GROUP if layout.head_dim % GROUP == 0 else layout.head_dim


def half_at_least(numbers: Floats) -> Halves:
    """The least float16 that is not below each number, all of them at least 0; infinite beyond 65504."""
    halves = _halves(numbers)
    # The bits of positive floats are in the order of the numbers.
    halves.view(np.uint16)[...] += halves.astype(np.float32) < numbers
    return halves


def half_at_most(numbers: Floats) -> Halves:
    """The greatest float16 that is not above each number; infinite beyond -65504."""
    halves = _halves(numbers)
    bits = halves.view(np.uint16)
    above = halves.astype(np.float32) > numbers
    # Downwards is towards 0 for a positive number, and away from it for a negative one. A number that was
    # rounded up to 0 was negative: its neighbour below is the least negative float16.
    bits[halves == 0] |= np.uint16(0x8000)
    np.add(bits, 1, out=bits, where=above & (bits >= 0x8000))
    np.subtract(bits, 1, out=bits, where=above & (bits < 0x8000))
    return halves


def inverse(scales: NDArray[Any]) -> Floats:
    """1 / scale, and 0 where the scale is 0: such a group holds one number only."""
    wide = scales.astype(np.float32)
    return np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)


def require_finite(scales: NDArray[Any], codec: str) -> None:
    """Raise `FormatError` where a group held a number that its scale cannot express."""
    if not np.isfinite(scales).all():
        raise FormatError(
            f"codec {codec}: the block has numbers that are not finite, or too large for its scales; "
            "it stays unpublished (codec: raw takes any block)"
        )


def _halves(numbers: Floats) -> Halves:
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype(np.float16)
