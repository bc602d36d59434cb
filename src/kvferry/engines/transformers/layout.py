"""How the KV of one block lies in memory: the only place that knows the order of its axes.

A block is contiguous: [layer, K or V, KV head, token, width]. That order makes a block one byte string for
any transport, while a head's tokens stay together as attention reads them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch

__all__ = ["KvLayout", "usable_blocks"]


def usable_blocks(prompt_tokens: int, block_tokens: int) -> int:
    """Full blocks that a cache may supply: the last token of a prompt is always computed."""
    return max(0, prompt_tokens - 1) // block_tokens


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The KV shape of a model whose layers are all full attention."""

    layers: int
    kv_heads: int
    width: int
    """Numbers per head and token, the same for K and V."""
    dtype: torch.dtype
    block_tokens: int

    @property
    def bytes_per_token(self) -> int:
        """2 x layers x KV heads x width x bytes of a number."""
        return 2 * self.layers * self.kv_heads * self.width * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        return self.bytes_per_token * self.block_tokens

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        return (self.layers, 2, self.kv_heads, self.block_tokens, self.width)

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def fingerprint(self) -> str:
        """What two replicas must share to read each other's bytes: order, dtype, byte order and ISA.

        The ISA is in it because the kernels that filled the block depend on it.
        """
        isa = torch.backends.cpu.get_cpu_capability().lower().replace(" ", "-")
        return f"layer.kv.head.token.width/{self.dtype_name}/{sys.byteorder}/cpu-{isa}"
