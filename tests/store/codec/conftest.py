"""What the tests of the codecs share: blocks of any layout, with numbers like those of a KV cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvferry.store.codec import BlockLayout


class Numbers:
    """Blocks as bytes, from numbers and back."""

    def kv(self, layout: BlockLayout, seed: int = 0) -> NDArray[np.float32]:
        """Normal numbers, with one key channel and one token that are far larger."""
        numbers = np.random.default_rng(seed).standard_normal(layout.shape).astype(np.float32)
        numbers[:, 0, :, :, 0] *= 30
        numbers[:, 1, :, 0, :] *= 10
        return numbers

    def block(self, layout: BlockLayout, numbers: NDArray[Any]) -> memoryview:
        """The block that holds `numbers` [layers, 2, heads, tokens, width], rounded to the layout's type."""
        block = memoryview(bytearray(layout.block_bytes))
        if layout.dtype == "float16":
            stored: NDArray[Any] = numbers.astype(np.float16).view(np.uint16)
        elif layout.dtype == "bfloat16":
            stored = (np.ascontiguousarray(numbers, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        else:
            stored = numbers
        layout.array(block)[...] = stored
        return block

    def read(self, layout: BlockLayout, block: memoryview) -> NDArray[np.float32]:
        """The numbers in a block."""
        stored = np.ascontiguousarray(layout.array(block))
        if layout.dtype == "float16":
            return stored.view(np.float16).astype(np.float32)
        if layout.dtype == "bfloat16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored


@pytest.fixture
def numbers() -> Numbers:
    return Numbers()
