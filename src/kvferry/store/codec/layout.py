"""What a codec must know of a block: its shape, its type and the order of its axes in memory.

Owns the description and the way from a block's bytes to an array whose axes stand in one order. Refuses to
know which engine laid the block out so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError

__all__ = ["CANONICAL_ORDER", "BlockLayout"]

CANONICAL_ORDER = "layer.kv.head.token.width"
"""The order that codecs work in; also that of the embedded engine."""

# 16-bit types are handled as bits: numpy has no bfloat16, and computes float16 one number at a time.
_STORED: dict[str, Any] = {"float32": np.float32, "float16": np.uint16, "bfloat16": np.uint16}
_WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """One block: K and V of `block_tokens` tokens, in every layer and KV head.

    Raises `ConfigError` for a size, a type or an order that makes no sense.
    """

    layers: int
    kv_heads: int
    block_tokens: int
    head_dim: int
    """Numbers per head and token, the same for K and V."""
    dtype: str
    """float32, float16 or bfloat16."""
    order: str = CANONICAL_ORDER
    """The five axes from the outermost to the innermost, joined by dots."""

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "block_tokens", "head_dim"):
            if getattr(self, name) < 1:
                raise ConfigError(f"a block layout needs {name} of at least 1, not {getattr(self, name)}")
        if self.dtype not in _STORED:
            raise ConfigError(f"no codec knows blocks of {self.dtype!r}; write one of {', '.join(_STORED)}")
        if sorted(self.order.split(".")) != sorted(_AXES):
            raise ConfigError(
                f"{self.order!r} is no order of a block's axes; write {CANONICAL_ORDER}, or its words in "
                "another order"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """(layers, 2, KV heads, tokens, width)."""
        return (self.layers, 2, self.kv_heads, self.block_tokens, self.head_dim)

    @property
    def numbers(self) -> int:
        """How many numbers a block has."""
        return math.prod(self.shape)

    @property
    def block_bytes(self) -> int:
        return self.numbers * _WIDTHS[self.dtype]

    def array(self, block: memoryview) -> NDArray[Any]:
        """A view on the block with its axes in canonical order: float32, or the bits of a 16-bit type."""
        names = self.order.split(".")
        size = dict(zip(_AXES, self.shape, strict=True))
        lying = np.frombuffer(block, dtype=_STORED[self.dtype]).reshape([size[name] for name in names])
        return lying.transpose([names.index(name) for name in _AXES])


_AXES = tuple(CANONICAL_ORDER.split("."))
