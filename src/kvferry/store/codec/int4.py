"""Four-bit integers between the least and the greatest number of a group, with float16 scales and zeros.

Sixteen steps have to be spent where the numbers are: so each group has a zero of its own, and values are cut
into groups of 32 channels. Which axis a group runs along is as in `int8.py`.

    section        type  shape                                      scale or zero of
    key scales     f2    [layers, heads, tokens / 32, width]        one channel in 32 tokens (or the block's)
    key zeros      f2    the same
    value scales   f2    [layers, heads, tokens, width / 32]        32 channels (or the head's) of one token
    value zeros    f2    the same
    numbers        u1    [layers, heads, tokens, width]             key in the low four bits, value above it

A number is zero + code x scale, code from 0 to 15. Zero is the least of the group, rounded down to float16,
the scale (greatest - zero) / 15, rounded up. The error is at most half a scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..frame import Codec as CodecId
from .contract import LossyCodec, Section
from .floats import Floats
from .layout import BlockLayout
from .scales import half_at_least, half_at_most, inverse, key_group, require_finite, value_group
from .scratch import scratch

__all__ = ["Int4"]

_MOST = np.float32(15)


class Int4(LossyCodec):
    """Half a byte a number, and a scale and a zero for each group."""

    name = "int4"
    id = CodecId.INT4

    @classmethod
    def sections(cls, layout: BlockLayout) -> tuple[Section, ...]:
        layers, _, heads, tokens, width = layout.shape
        of_keys = ("<f2", (layers, heads, tokens // key_group(layout), width))
        of_values = ("<f2", (layers, heads, tokens, width // value_group(layout)))
        return of_keys, of_keys, of_values, of_values, ("u1", (layers, heads, tokens, width))

    def encode_layers(self, numbers: Floats, parts: list[NDArray[Any]]) -> None:
        key_scales, key_zeros, value_scales, value_zeros, codes = parts
        keys = self._keys(numbers[:, 0])
        values = self._values(numbers[:, 1])
        low = scratch("low", codes.shape, np.uint8)
        high = scratch("high", codes.shape, np.uint8)
        self._quantise(keys, 3, key_scales, key_zeros, self._keys(low))
        self._quantise(values, 4, value_scales, value_zeros, self._values(high))
        np.left_shift(high, np.uint8(4), out=high)
        np.bitwise_or(low, high, out=codes)

    def decode_layers(self, parts: list[NDArray[Any]], numbers: Floats) -> None:
        key_scales, key_zeros, value_scales, value_zeros, codes = parts
        nibbles = scratch("low", codes.shape, np.uint8)
        np.bitwise_and(codes, np.uint8(15), out=nibbles)
        self._restore(self._keys(nibbles), 3, key_scales, key_zeros, self._keys(numbers[:, 0]))
        np.right_shift(codes, np.uint8(4), out=nibbles)
        self._restore(self._values(nibbles), 4, value_scales, value_zeros, self._values(numbers[:, 1]))

    def _quantise(
        self, numbers: Floats, axis: int, scales: NDArray[Any], zeros: NDArray[Any], codes: NDArray[Any]
    ) -> None:
        work: Floats = scratch("work", numbers.shape)
        zeros[...] = half_at_most(numbers.min(axis=axis))
        require_finite(zeros, self.name)
        zero = zeros.astype(np.float32)
        scales[...] = half_at_least((numbers.max(axis=axis) - zero) / _MOST)
        require_finite(scales, self.name)
        np.subtract(numbers, np.expand_dims(zero, axis), out=work)
        np.multiply(work, np.expand_dims(inverse(scales), axis), out=work)
        np.rint(work, out=work)
        np.copyto(codes, work, casting="unsafe")

    @staticmethod
    def _restore(
        codes: NDArray[Any], axis: int, scales: NDArray[Any], zeros: NDArray[Any], numbers: Floats
    ) -> None:
        np.copyto(numbers, codes)
        np.multiply(numbers, np.expand_dims(scales.astype(np.float32), axis), out=numbers)
        np.add(numbers, np.expand_dims(zeros.astype(np.float32), axis), out=numbers)

    def _keys(self, array: NDArray[Any]) -> NDArray[Any]:
        """[layers, heads, groups, tokens of a group, width]."""
        layers, heads, tokens, width = array.shape
        group = key_group(self.layout)
        return array.reshape(layers, heads, tokens // group, group, width)

    def _values(self, array: NDArray[Any]) -> NDArray[Any]:
        """[layers, heads, tokens, groups, channels of a group]."""
        layers, heads, tokens, width = array.shape
        group = value_group(self.layout)
        return array.reshape(layers, heads, tokens, width // group, group)
