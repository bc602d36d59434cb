"""Eight-bit integers, symmetric about zero, with float16 scales.

Keys have channels that are large in every token, values have not: so keys share a scale along the tokens of
one channel, values along the channels of one token (KIVI, arXiv 2402.02750, which does so for 2 bits).

    section        type  shape                                    scale of
    key scales     f2    [layers, heads, tokens / 32, width]      one channel in 32 tokens (or the block's)
    value scales   f2    [layers, heads, tokens]                  one token, every channel of the head
    numbers        i1    [layers, 2, heads, tokens, width]        -127 to 127

A number is code x scale; scale = largest of the group / 127, rounded up to float16. The error is at most
half a scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..frame import Codec as CodecId
from .contract import LossyCodec, Section
from .floats import Floats
from .layout import BlockLayout
from .scales import half_at_least, inverse, key_group, require_finite
from .scratch import scratch

__all__ = ["Int8"]

_MOST = np.float32(127)


class Int8(LossyCodec):
    """One byte a number, and a scale for each group."""

    name = "int8"
    id = CodecId.INT8

    @classmethod
    def sections(cls, layout: BlockLayout) -> tuple[Section, ...]:
        layers, _, heads, tokens, width = layout.shape
        return (
            ("<f2", (layers, heads, tokens // key_group(layout), width)),
            ("<f2", (layers, heads, tokens)),
            ("i1", layout.shape),
        )

    def encode_layers(self, numbers: Floats, parts: list[NDArray[Any]]) -> None:
        key_scales, value_scales, codes = parts
        grouped = self._grouped(numbers.shape)
        self._quantise(numbers[:, 0].reshape(grouped), 3, key_scales, codes[:, 0].reshape(grouped))
        self._quantise(numbers[:, 1], 3, value_scales, codes[:, 1])

    def decode_layers(self, parts: list[NDArray[Any]], numbers: Floats) -> None:
        key_scales, value_scales, codes = parts
        grouped = self._grouped(numbers.shape)
        keys, values = numbers[:, 0].reshape(grouped), numbers[:, 1]
        # First all codes as floats: one operation on both types would go through small buffers.
        np.copyto(numbers, codes)
        np.multiply(keys, _wide(key_scales, 3), out=keys)
        np.multiply(values, _wide(value_scales, 3), out=values)

    def _quantise(self, numbers: Floats, axis: int, scales: NDArray[Any], codes: NDArray[Any]) -> None:
        work: Floats = scratch("work", numbers.shape)
        np.abs(numbers, out=work)
        scales[...] = half_at_least(work.max(axis=axis) / _MOST)
        require_finite(scales, self.name)
        np.multiply(numbers, np.expand_dims(inverse(scales), axis), out=work)
        np.rint(work, out=work)
        np.copyto(codes, work, casting="unsafe")

    def _grouped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """[layers, heads, groups, tokens of a group, width]."""
        layers, _, heads, tokens, width = shape
        group = key_group(self.layout)
        return (layers, heads, tokens // group, group, width)


def _wide(scales: NDArray[Any], axis: int) -> Floats:
    return np.expand_dims(scales.astype(np.float32), axis)
