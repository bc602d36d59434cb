"""FP8 E4M3 with one float32 scale for K and for V of each layer and head.

Three bits of mantissa: the relative error of a number is at most 1/16 whatever its size, so outliers cost
nothing, and small numbers beside large ones keep theirs down to 1/28672 of the largest.

    section        type  shape
    scales         f4    [layers, 2, heads]                 largest / 448
    numbers        u1    [layers, 2, heads, tokens, width]  E4M3 codes
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..frame import Codec as CodecId
from .contract import LossyCodec, Section
from .floats import E4M3_MOST, Floats, from_e4m3, to_e4m3
from .layout import BlockLayout
from .scales import inverse, require_finite
from .scratch import scratch

__all__ = ["Fp8"]

# Below this the inverse of a scale would not be finite; such a head is as good as zero.
_LEAST_SCALE = np.float32(1e-37)


class Fp8(LossyCodec):
    """One byte a number."""

    name = "fp8"
    id = CodecId.FP8

    @classmethod
    def sections(cls, layout: BlockLayout) -> tuple[Section, ...]:
        return ("<f4", layout.shape[:3]), ("u1", layout.shape)

    def encode_layers(self, numbers: Floats, parts: list[NDArray[Any]]) -> None:
        scales, codes = parts
        work: Floats = scratch("work", numbers.shape)
        np.abs(numbers, out=work)
        top = work.max(axis=(3, 4)) / np.float32(E4M3_MOST)
        scales[...] = np.where(top < _LEAST_SCALE, np.float32(0), top)
        require_finite(scales, self.name)
        np.multiply(numbers, inverse(scales)[..., None, None], out=work)
        to_e4m3(work, codes)

    def decode_layers(self, parts: list[NDArray[Any]], numbers: Floats) -> None:
        scales, codes = parts
        work: Floats = scratch("work", numbers.shape)
        from_e4m3(codes, work)
        np.multiply(work, scales.astype(np.float32)[..., None, None], out=numbers)
