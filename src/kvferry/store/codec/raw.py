"""The codec that changes nothing: what the others are measured against.

A framed tier never calls it: it moves raw blocks without a copy.
"""

from __future__ import annotations

from ..frame import Codec as CodecId
from .contract import Codec
from .layout import BlockLayout

__all__ = ["Raw"]


class Raw(Codec):
    """The block's own bytes."""

    name = "raw"
    id = CodecId.RAW

    @classmethod
    def encoded_bytes(cls, layout: BlockLayout) -> int:
        return layout.block_bytes

    def _encode(self, block: memoryview, out: memoryview) -> None:
        out[:] = block

    def _decode(self, data: memoryview, block: memoryview) -> None:
        block[:] = data
