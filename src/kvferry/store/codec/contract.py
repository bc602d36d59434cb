"""What a codec is: blocks of one layout, to fewer bytes and back.

A payload is a row of sections, each an array whose leading axis is the layer, little-endian and without
gaps; its length depends on the layout alone. Owns the checks of lengths and the walk through the layers;
a codec states its sections and does one run of layers. Refuses to know tiers, frames and namespaces.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..frame import Codec as CodecId
from .floats import Floats, narrow, widen
from .layout import BlockLayout
from .scratch import Slots, layer_runs, scratch

__all__ = ["Codec", "LossyCodec", "Section"]

Section = tuple[str, tuple[int, ...]]
"""Type (as numpy writes it) and shape of one part of a payload."""


class Codec(ABC):
    """Encodes blocks of one layout. May be used from any thread; working memory is each thread's own."""

    name: ClassVar[str]
    """What settings and namespaces call it."""
    id: ClassVar[CodecId]
    """What a frame calls it."""

    def __init__(self, layout: BlockLayout) -> None:
        self.layout = layout
        self.payload_bytes = self.encoded_bytes(layout)
        self._slots = Slots(self.payload_bytes)

    @classmethod
    @abstractmethod
    def encoded_bytes(cls, layout: BlockLayout) -> int:
        """Bytes of one encoded block."""

    def encode_into(self, block: memoryview, out: memoryview) -> None:
        """Encode a block into `out`, `payload_bytes` long.

        Raises `FormatError` for numbers that the codec cannot hold: not finite, or too large for its scales;
        `ValueError` for a buffer of another length.
        """
        self._check(block, self.layout.block_bytes, "a block")
        self._check(out, self.payload_bytes, "an encoded block")
        self._encode(block, out)

    def decode_into(self, data: memoryview, block: memoryview) -> None:
        """Decode an encoded block into `block`. Raises `ValueError` for a buffer of another length."""
        self._check(data, self.payload_bytes, "an encoded block")
        self._check(block, self.layout.block_bytes, "a block")
        self._decode(data, block)

    def slots_for(self, blocks: Sequence[memoryview]) -> list[memoryview]:
        """Memory for these blocks, encoded: this thread's own, and until its next call here.

        Raises `ValueError` where one of them is no block of this layout.
        """
        for block in blocks:
            self._check(block, self.layout.block_bytes, "a block")
        return self._slots.take(len(blocks))

    @abstractmethod
    def _encode(self, block: memoryview, out: memoryview) -> None: ...

    @abstractmethod
    def _decode(self, data: memoryview, block: memoryview) -> None: ...

    def _check(self, buffer: memoryview, expected: int, what: str) -> None:
        if buffer.nbytes != expected:
            raise ValueError(f"codec {self.name}: {what} has {expected} bytes here, not {buffer.nbytes}")


class LossyCodec(Codec):
    """A codec that computes in float32, a run of layers at a time."""

    @classmethod
    @abstractmethod
    def sections(cls, layout: BlockLayout) -> tuple[Section, ...]:
        """The parts of a payload in order; the first axis of each is the layer."""

    @classmethod
    def encoded_bytes(cls, layout: BlockLayout) -> int:
        return sum(math.prod(shape) * np.dtype(kind).itemsize for kind, shape in cls.sections(layout))

    @abstractmethod
    def encode_layers(self, numbers: Floats, parts: list[NDArray[Any]]) -> None:
        """Encode [layers, 2, heads, tokens, width] into the same layers of each section.

        `numbers` may be the block itself: it is not written. Raises `FormatError` where a scale is no number.
        """

    @abstractmethod
    def decode_layers(self, parts: list[NDArray[Any]], numbers: Floats) -> None:
        """The way back."""

    def _encode(self, block: memoryview, out: memoryview) -> None:
        stored, parts = self.layout.array(block), self._parts(out)
        for run in layer_runs(self.layout):
            self.encode_layers(widen(stored[run], self.layout.dtype), [part[run] for part in parts])

    def _decode(self, data: memoryview, block: memoryview) -> None:
        stored, parts = self.layout.array(block), self._parts(data)
        direct = self.layout.dtype == "float32"
        for run in layer_runs(self.layout):
            numbers = stored[run] if direct else scratch("wide", stored[run].shape)
            self.decode_layers([part[run] for part in parts], numbers)
            if not direct:
                narrow(numbers, stored[run], self.layout.dtype)

    def _parts(self, payload: memoryview) -> list[NDArray[Any]]:
        parts, at = [], 0
        for kind, shape in self.sections(self.layout):
            count = math.prod(shape)
            parts.append(np.frombuffer(payload, kind, count, at).reshape(shape))
            at += count * np.dtype(kind).itemsize
        return parts
